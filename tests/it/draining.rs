//! Taking a worker out of a running fleet: no new work, nothing lost, and "safe to stop" only when it is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sluice_harness::process::run_to_end;
use sluice_harness::workload::{self, WorkloadPlan};
use sluice_harness::{
    Answer, Ask, Canned, Client, FleetPlan, Host, HostPlan, MockEngine, Mode, PolicyFile, until,
};
use sluice_sim::words;

use crate::{SOON, nothing_left_booked, right};

async fn order(host: &Host, worker: &str, order: &str) -> Answer {
    host.admin().post(&format!("/admin/workers/main/{worker}/{order}"), &json!({})).await.unwrap()
}

/// Waits until a worker is safe to stop; whenever it is called so, nothing may need it.
async fn until_safe(host: &Host, name: &str) {
    until(&format!("{name} to be safe to stop"), SOON, async || {
        let worker = host.worker(name).await.unwrap();
        assert_eq!(worker["draining"], true, "{worker}");
        if worker["safe_to_stop"] == false {
            return None;
        }
        assert_eq!((&worker["handles"], &worker["booked"]["requests"]), (&json!(0), &json!(0)), "{worker}");
        Some(())
    })
    .await
    .unwrap();
}

/// Requests that an emulator ever took.
async fn taken(fleet: &sluice_harness::Fleet, name: &str) -> Value {
    fleet.worker(name).client().get("/emulator/state").await.unwrap().json()["prompts"].clone()
}

/// One of each role is taken out and stopped while requests run: every answer is right, and a worker that is called
/// safe gets nothing more.
#[tokio::test]
async fn workers_are_taken_out_under_load_and_nothing_is_lost() {
    let round_robin = PolicyFile::policy("round-robin", "round-robin").unwrap();
    let engines = "--time-scale 1 --decode-step-base-ms 2 --prefill-tokens-per-s 20000";
    let mut fleet = FleetPlan::pull(2, 2).engines("", engines).decided_by(round_robin).start().await.unwrap();
    let plan = WorkloadPlan {
        conversations: 24,
        turns: 6,
        at_once: 8,
        first_words: 60,
        later_words: 20,
        max_tokens: 12,
        seed: 7,
    };
    let mut running = workload::start(fleet.client(), &plan);
    let mut ended = 0;
    while ended < 20 {
        assert_good(&running.next().await.unwrap());
        ended += 1;
    }
    for name in ["prefill-0", "decode-1"] {
        assert_eq!(order(&fleet.host, name, "drain").await.status, 200);
    }
    for name in ["prefill-0", "decode-1"] {
        until_safe(&fleet.host, name).await;
        let before = taken(&fleet, name).await;
        assert_good(&running.next().await.unwrap());
        ended += 1;
        assert_eq!(taken(&fleet, name).await, before, "{name}");
        fleet.worker_mut(name).process().kill().await.unwrap();
    }
    while let Some(outcome) = running.next().await {
        assert_good(&outcome);
        ended += 1;
    }
    assert_eq!(ended, plan.conversations * plan.turns);
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_retries_total", &[]), 0.0, "nobody met a stopped worker");
    assert_eq!(metrics.sum("sluice_policy_faults_total", &[]), 0.0);
    nothing_left_booked(&fleet.host, &["prefill-1", "decode-0"]).await;
    let left = fleet.host.worker("prefill-1").await.unwrap();
    assert_eq!((&left["handles"], &left["draining"]), (&json!(0), &json!(false)), "{left}");
}

fn assert_good(outcome: &workload::Outcome) {
    assert!(!outcome.failed() && outcome.wrong.is_none(), "{outcome:?}");
}

/// The prefill is long done, but decode has yet to read its blocks: stopping prefill now would cost the request.
#[tokio::test]
async fn a_prefill_worker_is_safe_only_when_its_handles_are_over() {
    let open = Arc::new(AtomicBool::new(false));
    let gate = open.clone();
    let prefill = MockEngine::well_behaved().await.unwrap();
    let decode = MockEngine::start(move |_| match gate.load(Ordering::SeqCst) {
        true => Canned::completed(),
        false => Canned::silence(),
    })
    .await
    .unwrap();
    let mut plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    // The shortest lease with a handle that can be used at all.
    plan.pool.push_str("kv_lease_ms = 4000\n");
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    let asked = json!({"model": "emulated", "prompt": "hi"});

    // Read: over at once.
    open.store(true, Ordering::SeqCst);
    assert_eq!(host.client().post("/v1/completions", &asked).await.unwrap().status, 200);
    assert_eq!(host.worker("prefill-0").await.unwrap()["handles"], 0);

    // Being read: decode has the handle and has said nothing yet.
    open.store(false, Ordering::SeqCst);
    let decoding = until("the decode leg", SOON, async || (decode.seen().len() == 2).then_some(()));
    let drained = async {
        decoding.await.unwrap();
        let told = order(&host, "prefill-0", "drain").await.json();
        assert_eq!((&told["requests"], &told["handles"]), (&json!(0), &json!(1)), "{told}");
        // Until decisions taken before the order are over, nothing would be called safe anyway.
        let safe = host.until_metric("sluice_worker_draining", &[], |sum| sum == 1.0, SOON).await;
        safe.unwrap();
        let worker = host.worker("prefill-0").await.unwrap();
        assert_eq!((&worker["safe_to_stop"], &worker["handles"]), (&json!(false), &json!(1)), "{worker}");
    };
    // The client leaves without an answer: whether decode read the blocks is not known.
    tokio::select! {
        answer = host.client().post("/v1/completions", &asked) => panic!("nothing can answer: {answer:?}"),
        () = drained => {}
    }
    let worker = host.worker("prefill-0").await.unwrap();
    assert_eq!(worker["handles"], 1, "a stranded handle counts until its lease ends: {worker}");
    until_safe(&host, "prefill-0").await;
    let metrics = host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_worker_safe_to_stop", &[("worker", "prefill-0")]), 1.0);
    assert_eq!(metrics.sum("sluice_worker_safe_to_stop", &[]), 1.0);
}

/// A handle whose decode worker is gone goes to another: the prompt is not prefilled again, and its holder is free long
/// before the lease ends.
#[tokio::test]
async fn a_handle_whose_decode_worker_is_gone_goes_to_another() {
    let engine = || {
        MockEngine::start(|request| match request.body["model"].as_str() {
            Some("emulated") => Canned::completed(),
            _ => Canned::json(404, &json!({"error": {"message": "no such model"}})),
        })
    };
    let (teller, doomed) = (engine().await.unwrap(), engine().await.unwrap());
    let doomed_url = doomed.url().to_owned();
    let doomed = Arc::new(Mutex::new(Some(doomed)));
    let armed = Arc::new(AtomicBool::new(false));
    let (struck, strikes) = (doomed.clone(), armed.clone());
    let prefill = MockEngine::start(move |_| {
        if strikes.load(Ordering::SeqCst) {
            struck.lock().unwrap().take();
            // Its connections close before the body is due: one runtime does both, in this order.
            return Canned::prefilled().body_after(Duration::from_millis(20));
        }
        Canned::prefilled()
    });
    let prefill = prefill.await.unwrap();
    let plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url());
    let mut plan = plan.worker("decode", teller.url()).worker("decode", &doomed_url);
    plan.pool.push_str("kv_lease_ms = 3600000\n");
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_metric("sluice_worker_up", &[], |up| up == 3.0, SOON).await.unwrap();

    // The same prompt goes the same way again: here, to the one that will be gone.
    let seen = || doomed.lock().unwrap().as_ref().map_or(0, |engine| engine.seen().len());
    let mut asked = Value::Null;
    for number in 0.. {
        asked = json!({"model": "emulated", "prompt": format!("prompt {number}")});
        assert_eq!(host.client().post("/v1/completions", &asked).await.unwrap().status, 200);
        if seen() == 1 {
            break;
        }
    }
    armed.store(true, Ordering::SeqCst);
    let prefills = prefill.seen().len();
    assert_eq!(host.client().post("/v1/completions", &asked).await.unwrap().status, 200);
    assert_eq!(prefill.seen().len() - prefills, 1);
    assert_eq!(order(&host, "prefill-0", "drain").await.status, 200);
    until_safe(&host, "prefill-0").await;
    let metrics = host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_transfers_total", &[("handle", "stranded")]), 0.0);
}

/// A decode worker that drains while a prompt is prefilled is not bound late, though it would have been.
#[tokio::test]
async fn a_decode_worker_that_drains_meanwhile_is_not_bound_late() {
    let late = PolicyFile::guest("late-binding", "late-binding").unwrap();
    // A prefill of a second, each time anew.
    let slow = "--time-scale 1 --prefill-tokens-per-s 100 --no-prefix-caching";
    let fleet = FleetPlan::pull(1, 2).engines("prefill", slow).decided_by(late).start().await.unwrap();
    let ask = Ask::completion(&words(3, 80), 4);
    let first = right(fleet.client(), &ask).await.decision.unwrap();
    assert_eq!(first.source, "policy");
    let drained = async {
        fleet.worker("prefill-0").until_running(1, SOON).await.unwrap();
        assert_eq!(order(&fleet.host, &first.decode, "drain").await.status, 200);
    };
    let (reply, ()) = tokio::join!(right(fleet.client(), &ask), drained);
    assert_ne!(reply.decision.unwrap().decode, first.decode);
}

/// With every decode worker draining, clients are told why and when to come back; `--undo` makes it good.
#[tokio::test]
async fn a_role_that_drains_as_a_whole_is_told() {
    let fleet = FleetPlan::pull(1, 2).start().await.unwrap();
    for name in ["decode-0", "decode-1"] {
        assert_eq!(order(&fleet.host, name, "drain").await.status, 200);
    }
    let ask = Ask::completion(&words(1, 20), 4);
    let refused = fleet.client().ask(&ask).await.unwrap();
    let message = refused.error.unwrap()["message"].as_str().unwrap().to_owned();
    assert_eq!(refused.status, 503);
    assert!(message.contains("every decode worker that is up is draining"), "{message}");
    assert_eq!(refused.headers["retry-after"], "1");
    let ready = fleet.client().get("/ready").await.unwrap();
    assert_eq!(ready.status, 503);
    assert_eq!(ready.json()["pools"][0]["note"], "every decode worker that is up is draining");

    let admin = fleet.host.admin().base().trim_start_matches("http://").to_owned();
    let undo = ["drain", "main/decode-1", "--undo", "--admin", &admin];
    let ended = run_to_end(&undo, SOON).await.unwrap();
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(0), "main/decode-1 takes work\n"),
        "{}",
        ended.stderr
    );
    let reply = right(fleet.client(), &ask).await;
    assert_eq!(reply.decision.unwrap().decode, "decode-1");
}

/// Waiting has an end, which says what is still there; the order stands.
#[tokio::test]
async fn waiting_for_a_worker_that_is_busy_has_an_end() {
    // A prefill of many seconds.
    let slow = "--time-scale 1 --prefill-tokens-per-s 10";
    let fleet = FleetPlan::pull(1, 1).engines("prefill", slow).start().await.unwrap();
    let admin = fleet.host.admin().base().trim_start_matches("http://").to_owned();
    let ask = Ask::completion(&words(3, 400), 4);
    let waited = async {
        fleet.worker("prefill-0").until_running(1, SOON).await.unwrap();
        let wait = ["drain", "main/prefill-0", "--wait", "--wait-s", "1", "--admin", &admin];
        run_to_end(&wait, SOON).await.unwrap()
    };
    let ended = tokio::select! {
        biased;
        ended = waited => ended,
        reply = fleet.client().ask(&ask) => panic!("answered too soon: {}", reply.unwrap().status),
    };
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{}", ended.stderr);
    assert!(ended.stderr.contains("after 1 s main/prefill-0 is draining: 1 request,"), "{}", ended.stderr);
    let fleet_now = fleet.host.admin().get("/admin/fleet").await.unwrap().json();
    assert_eq!(fleet_now["pools"][0]["workers"][0]["draining"], true, "{fleet_now}");
}

#[tokio::test]
async fn operators_drain_and_look_from_the_command_line() {
    let fleet = FleetPlan::pull(2, 1).start().await.unwrap();
    right(fleet.client(), &Ask::completion("hello", 4)).await;
    let admin = fleet.host.admin().base().trim_start_matches("http://").to_owned();
    let drained = run_to_end(&["drain", "main/prefill-1", "--wait", "--admin", &admin], SOON).await.unwrap();
    assert_eq!(
        (drained.code, drained.stdout.as_str()),
        (Some(0), "main/prefill-1 is safe to stop\n"),
        "{}",
        drained.stderr
    );
    let listed = run_to_end(&["fleet", "--admin", &admin], SOON).await.unwrap();
    let row = listed.stdout.lines().find(|line| line.starts_with("main/prefill-1")).unwrap_or_default();
    assert!(row.contains("drained, safe to stop"), "{}", listed.stdout);
    for (worker, code, word) in [
        ("main/nobody", 1, "it has: prefill-0, prefill-1, decode-0"),
        ("other/prefill-0", 1, "there are: main"),
        ("prefill-0", 2, "POOL/WORKER"),
        ("main/../policies", 2, "POOL/WORKER"),
    ] {
        let refused = run_to_end(&["drain", worker, "--admin", &admin], SOON).await.unwrap();
        assert_eq!(refused.code, Some(code), "{worker}: {}", refused.stderr);
        assert!(refused.stderr.contains(word), "{worker}: {}", refused.stderr);
    }
}

/// An order is a POST of an operator's: not a link that is followed, not a page's script.
#[tokio::test]
async fn orders_are_not_taken_from_just_anywhere() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let host = crate::in_front_of(&engine).await;
    let path = "/admin/workers/main/unified-0/drain";
    let from_page = [("origin", "http://evil.example")];
    let post = |client: Client, headers: &'static [(&'static str, &'static str)]| async move {
        client.request(hyper::Method::POST, path, "{}".into(), headers).await.unwrap()
    };
    for (answer, status, code) in [
        (host.admin().get(path).await.unwrap(), 405, "method_not_allowed"),
        (
            host.admin().request(hyper::Method::POST, path, "{}".into(), &from_page).await.unwrap(),
            403,
            "origin_refused",
        ),
        (host.client().post(path, &json!({})).await.unwrap(), 404, "not_found"),
        (post(host.admin().clone(), &[]).await, 200, ""),
    ] {
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"].as_str().unwrap_or_default(), code);
    }
    // Twice is once.
    let again = order(&host, "unified-0", "drain").await.json();
    assert_eq!(again["draining"], true);
}
