//! Connections that engines close without a word between two requests: no request is lost to them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use sluice_harness::mock_engine::{Closes, handle};
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode};

use crate::in_front_of;

async fn all_served(host: &Host, requests: usize) {
    for number in 0..requests {
        let asked = json!({"model": "emulated", "prompt": format!("number {number}")});
        let answer = host.client().post("/v1/completions", &asked).await.unwrap();
        assert_eq!(answer.status, 200, "number {number}: {}", answer.text());
    }
}

/// What was sent in vain, and what failed.
async fn counted(host: &Host) -> (f64, f64) {
    let metrics = host.metrics().await.unwrap();
    let resent = metrics.sum("sluice_retries_total", &[("reason", "resent")]);
    (resent, metrics.sum("sluice_leg_failures_total", &[]))
}

#[tokio::test]
async fn connections_closed_after_each_answer_cost_no_request() {
    let engine = MockEngine::one_answer_a_connection(Closes::AfterTheAnswer).await.unwrap();
    let host = in_front_of(&engine).await;
    all_served(&host, 200).await;
    assert_eq!(engine.seen().len(), 200);
    let (_, failures) = counted(&host).await;
    assert_eq!(failures, 0.0);
}

/// The worst moment: the connection looks well until the request is on it.
#[tokio::test]
async fn a_request_that_meets_a_closing_connection_is_sent_again() {
    let engine = MockEngine::one_answer_a_connection(Closes::AtTheNextRequest).await.unwrap();
    let host = in_front_of(&engine).await;
    all_served(&host, 200).await;
    let (resent, failures) = counted(&host).await;
    assert!(resent >= 100.0, "{resent}");
    assert_eq!(engine.seen().len() as f64, 200.0 + resent, "each was sent once more at most");
    assert_eq!(failures, 0.0);
}

/// The same holds for requests that are passed on as they are.
#[tokio::test]
async fn a_passed_request_that_meets_a_closing_connection_is_sent_again() {
    let engine = MockEngine::one_answer_a_connection(Closes::AtTheNextRequest).await.unwrap();
    let host = in_front_of(&engine).await;
    for number in 0..50 {
        let asked = json!({"model": "emulated", "input": format!("number {number}")});
        let answer = host.client().post("/v1/embeddings", &asked).await.unwrap();
        assert_eq!(answer.status, 200, "number {number}: {}", answer.text());
    }
    let (resent, failures) = counted(&host).await;
    assert!(resent >= 25.0, "{resent}");
    assert_eq!((engine.seen().len() as f64, failures), (50.0 + resent, 0.0));
}

/// A handle is used once, and the engine may have got it before the connection broke: the prompt is prefilled anew.
#[tokio::test]
async fn a_handle_that_met_a_closing_connection_is_not_sent_again() {
    let prefills = AtomicUsize::new(0);
    let prefill = MockEngine::start(move |_| {
        let mut handle = handle();
        handle["remote_request_id"] = format!("cmpl-{}", prefills.fetch_add(1, Ordering::Relaxed)).into();
        let choices = json!([{"index": 0, "text": " x", "finish_reason": "length"}]);
        Canned::json(200, &json!({"id": "cmpl-1", "choices": choices, "kv_transfer_params": handle}))
    });
    let prefill = prefill.await.unwrap();
    let decode = MockEngine::one_answer_a_connection(Closes::AtTheNextRequest).await.unwrap();
    let plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    all_served(&host, 50).await;
    let sent = decode.seen();
    let handles: BTreeSet<_> = sent.iter().map(|leg| leg.body["kv_transfer_params"].to_string()).collect();
    assert_eq!(handles.len(), sent.len(), "a handle was sent twice");
    assert!(sent.len() > 50, "no leg met a closing connection: it proves nothing");
    assert_eq!(prefill.seen().len(), sent.len());
}
