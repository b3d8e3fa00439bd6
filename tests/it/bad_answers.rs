//! Engines that are well to every probe and answer every request at once with something that is no answer: others
//! serve, the engine is spared, and where there is no other, clients are told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use sluice_harness::mock_engine::End;
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode, PolicyFile, until};

use crate::nothing_left_booked;

/// Requests looked at together, and how many of them a worker that fails them all may still be tried with.
const WINDOW: usize = 20;
const TRIED_AT_MOST: usize = 1;

/// Until a worker that fails all is spared: some windows of requests, and a few publications of measured rates.
const SPARED_WITHIN: Duration = Duration::from_secs(5);

fn bad_answers() -> [(&'static str, Canned); 8] {
    let error = json!({"error": {"message": "out of order", "type": "InternalServerError", "code": 500}});
    let failed = json!({"id": "c", "choices": [{"index": 0, "text": "", "finish_reason": "error"}]});
    [
        ("500", Canned::json(500, &error)),
        ("503 without a word", Canned::text(503, "text/plain", "")),
        ("204", Canned::text(204, "text/plain", "")),
        ("empty", Canned::text(200, "application/json", "")),
        ("error in a 200", Canned::json(200, &error)),
        ("HTML", Canned::text(200, "text/html", "<html><body>Welcome</body></html>")),
        ("no choices", Canned::json(200, &json!({"id": "c", "usage": {"prompt_tokens": 7}}))),
        ("finish_reason error", Canned::json(200, &failed)),
    ]
}

/// A bad worker of this role beside a healthy one: the name of the bad one, and the host's plan.
fn beside_a_healthy_one(role: &str, bad: &MockEngine, good: &MockEngine) -> (&'static str, HostPlan) {
    match role {
        "unified" => {
            let plan =
                HostPlan::new(Mode::Unified).worker("unified", bad.url()).worker("unified", good.url());
            ("unified-0", plan)
        }
        "prefill" => {
            let plan = HostPlan::new(Mode::Pull).worker("prefill", bad.url()).worker("prefill", good.url());
            ("prefill-0", plan.worker("decode", &good.url().replace("127.0.0.1", "localhost")))
        }
        _ => {
            let plan = HostPlan::new(Mode::Pull).worker("decode", bad.url()).worker("decode", good.url());
            ("decode-0", plan.worker("prefill", &good.url().replace("127.0.0.1", "localhost")))
        }
    }
}

async fn serve_one(host: &Host, number: usize, what: &str) {
    let asked = json!({"model": "emulated", "prompt": format!("number {number}")});
    let answer = host.client().post("/v1/completions", &asked).await.unwrap();
    assert_eq!(answer.status, 200, "{what}: {}", answer.text());
    assert_eq!(answer.json()["choices"][0]["text"], " two words", "{what}");
}

async fn is_spared(role: &str, policy: &str, kind: &str, canned: Canned) {
    let what = format!("{kind}, as {role}, under {policy}");
    let bad = MockEngine::start(move |_| canned.clone()).await.unwrap();
    let good = MockEngine::well_behaved().await.unwrap();
    let (name, plan) = beside_a_healthy_one(role, &bad, &good);
    let policies = match policy {
        "builtin" => vec![],
        wasm => vec![PolicyFile::policy(wasm, wasm).unwrap()],
    };
    let host = Host::start(&plan.policy(policy), &policies).await.unwrap();
    host.until_ready().await.unwrap();
    let mut number = 0;
    until(&format!("the worker to be spared: {what}"), SPARED_WITHIN, async || {
        let before = bad.seen().len();
        for _ in 0..WINDOW {
            number += 1;
            serve_one(&host, number, &what).await;
        }
        let tried = bad.seen().len();
        (tried > 0 && tried - before <= TRIED_AT_MOST).then_some(())
    })
    .await
    .unwrap();

    let metrics = host.metrics().await.unwrap();
    let legs = metrics.sum("sluice_legs_total", &[("worker", name)]);
    assert_eq!(legs, bad.seen().len() as f64, "{what}");
    assert_eq!(metrics.sum("sluice_leg_failures_total", &[("worker", name)]), legs, "{what}");
    assert_eq!(metrics.sum("sluice_leg_failures_total", &[]), legs, "{what}");
}

async fn all_are_spared(role: &str) {
    for (kind, canned) in bad_answers() {
        is_spared(role, "builtin", kind, canned).await;
    }
}

#[tokio::test]
async fn a_bad_unified_worker_is_spared() {
    all_are_spared("unified").await;
}

#[tokio::test]
async fn a_bad_decode_worker_is_spared() {
    all_are_spared("decode").await;
}

#[tokio::test]
async fn a_bad_prefill_worker_is_spared() {
    all_are_spared("prefill").await;
}

/// One answer that says it failed, and one that only looks well.
async fn policies_spare(role: &str, policy: &str) {
    for (kind, canned) in bad_answers().into_iter().filter(|(kind, _)| ["500", "HTML"].contains(kind)) {
        is_spared(role, policy, kind, canned).await;
    }
}

#[tokio::test]
async fn least_loaded_spares_bad_workers() {
    for role in ["unified", "prefill", "decode"] {
        policies_spare(role, "least-loaded").await;
    }
}

#[tokio::test]
async fn adaptive_spares_bad_workers() {
    for role in ["unified", "prefill", "decode"] {
        policies_spare(role, "adaptive").await;
    }
}

/// An engine whose answer can be changed.
async fn changeable() -> (Arc<Mutex<Canned>>, MockEngine) {
    let answer = Arc::new(Mutex::new(Canned::completed()));
    let script = answer.clone();
    let engine = MockEngine::start(move |_| script.lock().unwrap().clone()).await.unwrap();
    (answer, engine)
}

/// Every leg failed, so no figure says that half of them did: policies spare by it. Probes that go well lower it, slowly.
#[tokio::test]
async fn a_worker_that_fails_every_request_is_known_for_it() {
    let broken = Canned { end: End::BrokenOff, ..Canned::text(200, "application/json", "{\"choices\":") };
    let chunk = r#"{"id":"c","choices":[{"index":0,"text":" a","finish_reason":null}]}"#;
    let stream = Canned::events(&[chunk], End::BrokenOff);
    let failures = bad_answers().into_iter().chain([("broken body", broken), ("broken stream", stream)]);
    let mut wrong = Vec::new();
    for (kind, canned) in failures {
        let engine = MockEngine::start(move |_| canned.clone()).await.unwrap();
        let host = crate::in_front_of(&engine).await;
        for _ in 0..20 {
            let asked = json!({"model": "emulated", "prompt": "hi"});
            host.client().post("/v1/completions", &asked).await.unwrap();
        }
        let rate = host.worker("unified-0").await.unwrap()["failure_rate"].as_f64().unwrap();
        if rate < 0.75 {
            wrong.push((kind, rate));
        }
    }
    assert_eq!(wrong, [], "failure rates of workers that failed every leg");
}

/// Attempts at one request, the first included.
const ATTEMPTS_AT_MOST: usize = 4;

#[tokio::test]
async fn with_no_other_worker_attempts_are_bounded_and_the_client_is_told() {
    let (prefill, (answer, decode)) = (MockEngine::well_behaved().await.unwrap(), changeable().await);
    let pull = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    let unified = HostPlan::new(Mode::Unified).worker("unified", decode.url());
    for (plan, workers) in [(unified, &["unified-0"][..]), (pull, &["prefill-0", "decode-0"])] {
        let host = Host::start(&plan, &[]).await.unwrap();
        host.until_ready().await.unwrap();
        for (kind, canned) in bad_answers() {
            let status = if canned.status >= 500 { canned.status } else { 502 };
            *answer.lock().unwrap() = canned;
            let before = (decode.seen().len(), prefill.seen().len());
            let asked = json!({"model": "emulated", "prompt": "hi"});
            let told = host.client().post("/v1/completions", &asked).await.unwrap();
            assert_eq!(told.status, status, "{kind}: {}", told.text());
            let error = told.json()["error"].clone();
            assert_eq!(error["type"], "upstream_error", "{kind}: {error}");
            assert!(!error["message"].as_str().unwrap_or_default().is_empty(), "{kind}: {error}");
            assert_eq!(decode.seen().len() - before.0, ATTEMPTS_AT_MOST, "{kind}");
            let prefills = if workers.len() == 2 { ATTEMPTS_AT_MOST } else { 0 };
            assert_eq!(prefill.seen().len() - before.1, prefills, "{kind}");
        }
        nothing_left_booked(&host, workers).await;
        let told = bad_answers().len() as f64;
        let metrics = host.metrics().await.unwrap();
        assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", "decode_failed")]), told);
        assert_eq!(metrics.sum("sluice_retries_total", &[]), told * (ATTEMPTS_AT_MOST - 1) as f64);
        // It serves as soon as the engine does.
        *answer.lock().unwrap() = Canned::completed();
        serve_one(&host, 0, "well again").await;
    }
}

/// When to come back is the engine's to say.
#[tokio::test]
async fn retry_after_of_the_only_engine_is_passed_on() {
    let engine = MockEngine::start(|_| Canned::text(503, "text/plain", "busy").header("retry-after", "7"))
        .await
        .unwrap();
    let host = crate::in_front_of(&engine).await;
    let asked = json!({"model": "emulated", "prompt": "hi"});
    let told = host.client().post("/v1/completions", &asked).await.unwrap();
    assert_eq!((told.status, told.header("retry-after")), (503, Some("7")), "{}", told.text());
}
