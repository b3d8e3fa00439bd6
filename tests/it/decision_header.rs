//! `x-sluice-decision` on what went wrong after a decision: who decided, which attempts failed, and how.

use std::collections::BTreeMap;

use hyper::Method;
use serde_json::json;
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode, PolicyFile};

/// The answer's status, and the header's parts; none without the header.
async fn asked(host: &Host, headers: &[(&str, &str)]) -> (u16, BTreeMap<String, String>) {
    let body = json!({"model": "emulated", "prompt": "hi"}).to_string();
    let headers = [headers, &[("x-sluice-decision", "1")]].concat();
    let answer = host.client().request(Method::POST, "/v1/completions", body.into(), &headers).await.unwrap();
    let text = answer.header("x-sluice-decision").unwrap_or_default();
    let parts = text.split("; ").filter_map(|part| part.split_once('='));
    (answer.status, parts.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

fn are(parts: &BTreeMap<String, String>, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        assert_eq!(parts.get(*key).map(String::as_str), Some(*value), "{key}: {parts:?}");
    }
}

#[tokio::test]
async fn a_policys_refusal_is_told() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let plan = HostPlan::new(Mode::Unified).worker("unified", engine.url()).policy("active");
    let plan = HostPlan { policy_keys: "labels = [\"x-mood\"]\n".into(), ..plan };
    let policy = PolicyFile::guest("active", "on-demand").unwrap();
    let host = Host::start(&plan, &[policy]).await.unwrap();
    host.until_ready().await.unwrap();
    let (status, parts) = asked(&host, &[("x-mood", "reject")]).await;
    assert_eq!(status, 429);
    are(
        &parts,
        &[
            ("policy", "active"),
            ("generation", "1"),
            ("placement", "rejected"),
            ("error", "rejected_by_policy"),
            ("reason", "in that mood"),
            ("decode", ""),
        ],
    );
    let (status, parts) = asked(&host, &[("x-mood", "trap")]).await;
    assert_eq!(status, 200);
    are(&parts, &[("policy", "active"), ("source", "fault"), ("decode", "unified-0"), ("attempts", "1")]);
}

#[tokio::test]
async fn failed_attempts_are_told() {
    let told = json!({"error": {"message": "too long", "param": "prompt"}});
    let refusing = MockEngine::start(move |_| Canned::json(400, &told)).await.unwrap();
    let broken = MockEngine::raw(b"").await.unwrap();
    let failing = MockEngine::start(|_| Canned::json(500, &json!({}))).await.unwrap();
    for (engine, status, error, failed, attempts) in [
        (&refusing, 400, "refused_by_engine", "unified-0:refused", "1"),
        (
            &broken,
            502,
            "worker_broke_off",
            "unified-0:broken,unified-0:broken,unified-0:broken,unified-0:broken",
            "4",
        ),
        (
            &failing,
            500,
            "engine_failed",
            "unified-0:status_5xx,unified-0:status_5xx,unified-0:status_5xx,unified-0:status_5xx",
            "4",
        ),
    ] {
        let host = crate::in_front_of(engine).await;
        let (found, parts) = asked(&host, &[]).await;
        assert_eq!(found, status, "{error}");
        are(&parts, &[("error", error), ("failed", failed), ("attempts", attempts), ("decode", "unified-0")]);
    }
}

/// No decision, no header.
#[tokio::test]
async fn what_was_never_decided_has_none() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let host = crate::in_front_of(&engine).await;
    let headers = [("x-sluice-decision", "1")];
    let answer = host.client().request(Method::POST, "/v1/completions", "{}".into(), &headers).await.unwrap();
    assert_eq!((answer.status, answer.header("x-sluice-decision")), (400, None));
}
