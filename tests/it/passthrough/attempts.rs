//! Workers that fail, are gone or drain: another takes the request, within its time.

use serde_json::json;
use sluice_harness::mock_engine::End;
use sluice_harness::{Canned, MockEngine};

use super::{DELTA, engine, error_code, events_of, unified_host};
use crate::{SOON, in_front_of, nothing_left_booked};

/// Before the first byte another worker is tried: after a 5xx, an answer that is none, a connection that breaks.
#[tokio::test]
async fn failures_are_tried_elsewhere() {
    for bad in [
        Canned::json(503, &json!({"error": {"message": "starting"}})),
        Canned::text(200, "application/json", "{\"half\":"),
        Canned::text(200, "application/json", ""),
        Canned { end: End::BrokenOff, ..Canned::text(200, "application/json", "{\"id\":") },
    ] {
        let shown = format!("{bad:?}");
        let (good, bad) =
            (engine(json!({"id": "good"})).await, MockEngine::start(move |_| bad.clone()).await.unwrap());
        let host = unified_host(&[&bad, &good], "").await;
        for number in 0..12 {
            let asked = json!({"model": "emulated", "input": format!("number {number}")});
            let reply = host.client().post("/v1/embeddings", &asked).await.unwrap();
            assert_eq!((reply.status, reply.json()), (200, json!({"id": "good"})), "{shown}");
        }
        let metrics = host.metrics().await.unwrap();
        let failures = metrics.sum("sluice_leg_failures_total", &[("worker", "unified-0")]);
        assert!(failures >= 1.0, "the bad one was never asked: {shown}");
        assert_eq!(failures, bad.seen().len() as f64, "{shown}");
        assert_eq!(metrics.sum("sluice_retries_total", &[]), failures, "{shown}");
    }
}

#[tokio::test]
async fn a_worker_that_is_gone_costs_no_request() {
    let good = engine(json!({"id": "good"})).await;
    let gone = engine(json!({"id": "gone"})).await;
    let host = unified_host(&[&gone, &good], "").await;
    drop(gone);
    for number in 0..4 {
        let asked = json!({"model": "emulated", "input": format!("number {number}")});
        assert_eq!(host.client().post("/v1/embeddings", &asked).await.unwrap().json(), json!({"id": "good"}));
    }
}

#[tokio::test]
async fn a_request_has_its_time_and_no_more() {
    let engine = MockEngine::start(|request| match request.path.as_str() {
        "/tokenize" => Canned::silence(),
        _ => Canned::stream(&[DELTA], End::Never),
    })
    .await
    .unwrap();
    let host = unified_host(&[&engine], "request_timeout_ms = 1000\nconnect_timeout_ms = 500").await;
    let reply = host.client().post("/tokenize", &json!({"model": "emulated", "prompt": "x"})).await.unwrap();
    assert_eq!(error_code(&reply), (504, "timeout".into()));
    let events = events_of(&host, "/v1/responses").await;
    assert_eq!((events.len(), events[1]["code"].as_str()), (2, Some("timeout")), "{events:?}");
    nothing_left_booked(&host, &["unified-0"]).await;
}

/// That all workers fail and are asked all the same is counted for passed requests too.
#[tokio::test]
async fn ignored_breakers_are_told() {
    let engine =
        MockEngine::start(|_| Canned::json(503, &json!({"error": {"message": "no"}}))).await.unwrap();
    let host = in_front_of(&engine).await;
    for _ in 0..8 {
        let asked = json!({"model": "emulated", "input": "x"});
        assert_eq!(host.client().post("/v1/embeddings", &asked).await.unwrap().status, 503);
    }
    let metrics = host.metrics().await.unwrap();
    assert!(metrics.sum("sluice_fallbacks_total", &[("reason", "breakers_ignored")]) >= 1.0);
}

/// Who drains gets no passed request either; when all do, clients are told.
#[tokio::test]
async fn draining_workers_get_none() {
    let (first, second) = (engine(json!({"data": [1]})).await, engine(json!({"data": [1]})).await);
    let host = unified_host(&[&first, &second], "").await;
    host.until_metric("sluice_worker_up", &[], |up| up == 2.0, SOON).await.unwrap();
    let ask = async |path: &str, number: u32| {
        let body = json!({"model": "emulated", "input": format!("{number}")});
        host.client().post(path, &body).await.unwrap()
    };
    let drain = async |name: &str| {
        let path = format!("/admin/workers/main/{name}/drain");
        assert_eq!(host.admin().post(&path, &json!({})).await.unwrap().status, 200);
    };
    drain("unified-0").await;
    for number in 0..8 {
        assert_eq!(ask("/v1/embeddings", number).await.status, 200);
        assert_eq!(ask("/v1/responses", number).await.status, 200);
    }
    assert_eq!((first.seen().len(), second.seen().len()), (0, 16));
    drain("unified-1").await;
    for path in ["/v1/embeddings", "/v1/responses"] {
        let refused = ask(path, 0).await;
        let message = refused.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(refused.status, 503, "{message}");
        assert!(message.contains("draining"), "{message}");
    }
    assert_eq!((first.seen().len(), second.seen().len()), (0, 16));
}
