//! What operators and balancers ask for.

use serde_json::json;
use sluice_harness::{Ask, FleetPlan, PolicyFile, until};

use crate::{SOON, right};

#[tokio::test]
async fn models_are_listed() {
    let fleet = FleetPlan::unified(1).start().await.unwrap();
    let models = fleet.client().get("/v1/models").await.unwrap();
    assert_eq!(models.status, 200);
    let models = models.json();
    assert_eq!(models["object"], "list");
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["object"]),
        (&json!("emulated"), &json!("model"))
    );
}

#[tokio::test]
async fn ready_tells_pools_and_the_policy_in_force() {
    let adaptive = PolicyFile::policy("adaptive", "adaptive").unwrap();
    let fleet = FleetPlan::pull(1, 1).decided_by(adaptive).start().await.unwrap();
    let ready = fleet.client().get("/ready").await.unwrap().json();
    assert_eq!(ready["ready"], true);
    assert_eq!((&ready["pools"][0]["up"], &ready["pools"][0]["workers"]), (&json!(2), &json!(2)));
    assert_eq!(
        (&ready["policy"]["wanted"], &ready["policy"]["in_force"]),
        (&json!("adaptive"), &json!("adaptive"))
    );
}

/// A pull pool without a decode worker that is up cannot serve, and says why.
#[tokio::test]
async fn ready_is_no_while_a_role_is_missing() {
    let mut fleet = FleetPlan::pull(1, 1).start().await.unwrap();
    fleet.worker_mut("decode-0").process().kill().await.unwrap();
    let ready = until("the host to notice", SOON, async || {
        let ready = fleet.client().get("/ready").await.ok()?;
        (ready.status == 503).then(|| ready.json())
    })
    .await
    .unwrap();
    assert_eq!(
        (&ready["ready"], &ready["pools"][0]["note"]),
        (&json!(false), &json!("no decode worker is up"))
    );
}

#[tokio::test]
async fn metrics_are_an_exposition_that_counts() {
    let fleet = FleetPlan::pull(1, 1).start().await.unwrap();
    right(fleet.client(), &Ask::completion("one", 4)).await;
    right(fleet.client(), &Ask::question("two", 4).streamed()).await;
    for client in [fleet.client(), fleet.host.admin()] {
        let answer = client.get("/metrics").await.unwrap();
        assert!(answer.header("content-type").unwrap().starts_with("application/openmetrics-text"));
        assert!(answer.text().ends_with("# EOF\n"));
        let metrics = client.metrics().await.unwrap();
        for (name, labels, expected) in [
            ("sluice_requests_total", &[("outcome", "ok")][..], 2.0),
            ("sluice_requests_total", &[("endpoint", "/v1/completions")], 1.0),
            ("sluice_decisions_total", &[("policy", "builtin")], 2.0),
            ("sluice_transfers_total", &[("handle", "dispatched")], 2.0),
            ("sluice_phase_seconds_count", &[("phase", "prefill")], 2.0),
            (
                "sluice_phase_seconds_count",
                &[("phase", "decide"), ("pool", "main"), ("policy", "builtin")],
                2.0,
            ),
            ("sluice_phase_seconds_count", &[("phase", "queue"), ("policy", "builtin")], 2.0),
            ("sluice_phase_seconds_count", &[("phase", "first_token")], 1.0),
            ("sluice_phase_seconds_count", &[("phase", "transfer")], 1.0),
            ("sluice_phase_seconds_count", &[("phase", "decode_first_byte")], 1.0),
            ("sluice_phase_seconds_count", &[("phase", "per_token")], 1.0),
            ("sluice_phase_seconds_count", &[("phase", "total"), ("policy", "builtin")], 2.0),
            ("sluice_phase_seconds_count", &[("phase", "total"), ("policy", "none")], 0.0),
            ("sluice_worker_up", &[], 2.0),
            ("sluice_in_flight_requests", &[], 0.0),
            ("sluice_policy_faults_total", &[], 0.0),
        ] {
            assert_eq!(metrics.sum(name, labels), expected, "{name} {labels:?}");
        }
    }
}

/// The admin API is not on the clients' listener, nor generation on the operators'.
#[tokio::test]
async fn listeners_are_apart() {
    let fleet = FleetPlan::unified(1).start().await.unwrap();
    for path in ["/admin/policies", "/admin/fleet"] {
        assert_eq!(fleet.client().get(path).await.unwrap().status, 404);
        assert_eq!(fleet.host.admin().get(path).await.unwrap().status, 200);
    }
    let ask = Ask::completion("hello", 4);
    assert_eq!(fleet.host.admin().post("/v1/completions", &ask.json()).await.unwrap().status, 404);
}

/// The fleet as operators see it: who is up, which version, how fast.
#[tokio::test]
async fn the_fleet_is_shown_with_what_was_measured() {
    let fleet = FleetPlan::pull(1, 1).start().await.unwrap();
    right(fleet.client(), &Ask::completion(&sluice_sim::words(1, 200), 16).streamed()).await;
    let (prefill, decode) =
        (fleet.host.worker("prefill-0").await.unwrap(), fleet.host.worker("decode-0").await.unwrap());
    assert_eq!(
        (&prefill["state"], &prefill["role"], &prefill["version"]),
        (&json!("up"), &json!("prefill"), &json!("0.32.0"))
    );
    assert!(prefill["prefill_tokens_per_s"].as_f64().unwrap() > 0.0, "{prefill}");
    assert!(decode["decode_step_ms"].as_f64().unwrap() > 0.0, "{decode}");
    assert_eq!(decode["kv_blocks_total"], 4096);
}

#[tokio::test]
async fn decisions_are_told_only_to_who_asks() {
    let fleet = FleetPlan::unified(1).start().await.unwrap();
    let ask = Ask::completion("hello", 4);
    let plain = fleet.client().post("/v1/completions", &ask.json()).await.unwrap();
    assert_eq!((plain.status, plain.header("x-sluice-decision")), (200, None));
    assert!(plain.header("x-request-id").unwrap().starts_with("slc-"));
    let decision = right(fleet.client(), &ask).await.decision.unwrap();
    assert_eq!(
        (decision.policy.as_str(), decision.source.as_str(), decision.decode.as_str()),
        ("builtin", "builtin", "unified-0")
    );
}
