//! Workers that die: others take over, and when none is left, clients are told when to come back.

use std::time::Duration;

use sluice_harness::{Ask, FleetPlan, PolicyFile, until};
use sluice_sim::words;

use crate::{SOON, right};

#[tokio::test]
async fn the_others_serve_when_one_is_killed() {
    for (plan, victim) in [(FleetPlan::unified(2), "unified-0"), (FleetPlan::pull(2, 2), "decode-1")] {
        let round_robin = PolicyFile::policy("round-robin", "round-robin").unwrap();
        let mut fleet = plan.decided_by(round_robin).start().await.unwrap();
        for number in 0..4 {
            right(fleet.client(), &Ask::completion(&words(number, 20), 4)).await;
        }
        fleet.worker_mut(victim).process().kill().await.unwrap();
        for number in 10..20 {
            let reply = right(fleet.client(), &Ask::completion(&words(number, 20), 4).streamed()).await;
            assert_ne!(reply.decision.unwrap().decode, victim);
        }
        // Round robin met the dead worker before any probe did: one attempt failed, and another was made.
        let metrics = fleet.host.metrics().await.unwrap();
        assert!(metrics.sum("sluice_retries_total", &[]) >= 1.0);
        assert!(metrics.sum("sluice_leg_failures_total", &[("worker", victim)]) >= 1.0);
        assert_eq!(fleet.host.worker(victim).await.unwrap()["state"], "down");
        assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", "ok")]), 14.0);
    }
}

#[tokio::test]
async fn requests_waiting_on_a_killed_worker_are_not_lost() {
    let slow = "--time-scale 1 --decode-step-base-ms 20";
    let round_robin = PolicyFile::policy("round-robin", "round-robin").unwrap();
    let mut fleet = FleetPlan::unified(2).engines("", slow).decided_by(round_robin).start().await.unwrap();
    let client = fleet.client().clone();
    let asks: Vec<_> = (0..3).map(|number| Ask::completion(&words(number, 20), 20)).collect();
    let answers =
        async { tokio::join!(right(&client, &asks[0]), right(&client, &asks[1]), right(&client, &asks[2])) };
    let kill = async {
        let worker = fleet.worker_mut("unified-0");
        until("a request on it", SOON, async || {
            (worker.metrics().await.ok()?.sum("vllm:num_requests_running", &[]) >= 1.0).then_some(())
        })
        .await
        .unwrap();
        worker.process().kill().await.unwrap();
    };
    let _ = tokio::join!(answers, kill);
}

/// A worker that breaks off each request, and yet is healthy to every probe: another attempt goes to another worker,
/// whatever turn the policy thinks it is.
#[tokio::test]
async fn another_attempt_goes_to_another_worker() {
    use sluice_harness::{Host, HostPlan, MockEngine, Mode};
    let (broken, good) = (MockEngine::raw(b"").await.unwrap(), MockEngine::well_behaved().await.unwrap());
    let plan = HostPlan::new(Mode::Unified).worker("unified", broken.url()).worker("unified", good.url());
    let round_robin = PolicyFile::policy("round-robin", "round-robin").unwrap();
    let host = Host::start(&plan.policy("round-robin"), &[round_robin]).await.unwrap();
    host.until_ready().await.unwrap();
    for number in 0..6 {
        let reply = host.client().ask(&Ask::completion(&words(number, 20), 2)).await.unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.decision.unwrap().decode, "unified-1");
    }
    let retries = host.metrics().await.unwrap().sum("sluice_retries_total", &[("reason", "broken")]);
    assert!(retries >= 1.0, "{retries}");
}

#[tokio::test]
async fn nobody_left_is_a_503_that_says_when_to_come_back() {
    let mut fleet = FleetPlan::unified(2).start().await.unwrap();
    for name in ["unified-0", "unified-1"] {
        fleet.worker_mut(name).process().kill().await.unwrap();
    }
    let ask = Ask::completion("anybody there", 4);
    let reply = until("the host to notice", SOON, async || {
        let reply = fleet.client().ask(&ask).await.unwrap();
        assert!(matches!(reply.status, 502 | 503), "{reply:?}");
        (reply.status == 503).then_some(reply)
    })
    .await
    .unwrap();
    assert_eq!(reply.error_member("code"), "no_worker_up");
    let seconds: u64 = reply.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    assert_eq!(fleet.client().get("/ready").await.unwrap().status, 503);
    assert_eq!(fleet.client().get("/health").await.unwrap().status, 200);
}

/// A worker that comes up late is found without a restart of the host.
#[tokio::test]
async fn a_worker_that_comes_late_is_found() {
    use sluice_harness::{Emulator, EmulatorPlan, Host, HostPlan, Mode};
    let folder = tempfile::TempDir::new().unwrap();
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let url = format!("http://127.0.0.1:{port}");
    let host = Host::start(&HostPlan::new(Mode::Unified).worker("unified", &url), &[]).await.unwrap();
    let ready = host.client().get("/ready").await.unwrap();
    assert_eq!((ready.status, &ready.json()["ready"]), (503, &false.into()));
    assert_eq!(ready.json()["pools"][0]["serves"], false);
    let plan = EmulatorPlan::fast("unified").with(&format!("--listen 127.0.0.1:{port}"));
    let _engine = Emulator::start("late", &plan, folder.path()).await.unwrap();
    host.until_ready().await.unwrap();
    right(host.client(), &Ask::completion("hello", 4)).await;
    let up = host.until_metric(
        "sluice_worker_up",
        &[("worker", "unified-0")],
        |up| up == 1.0,
        Duration::from_secs(5),
    );
    up.await.unwrap();
}
