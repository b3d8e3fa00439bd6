//! Streams of other paths: relayed to their own end, begun elsewhere if they do not begin, and told if they break.

use serde_json::json;
use sluice_harness::mock_engine::{End, handle};
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode, until};

use super::{COMPLETED, DELTA, error_code, events_of, unified_host};
use crate::{SOON, in_front_of, nothing_left_booked};

/// A stream without `[DONE]` is whole when its last event says so; handles deep in it stay inside.
#[tokio::test]
async fn streams_are_relayed_to_their_own_end() {
    let with_handle = format!(
        "event: response.completed\ndata: {}\n\n",
        json!({"type": "response.completed", "response": {"id": "r", "kv_transfer_params": handle()}})
    );
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    for (path, pieces, end) in [
        ("/v1/responses", vec![DELTA, DELTA, COMPLETED], End::Whole),
        ("/v1/responses", vec![DELTA, COMPLETED], End::BrokenOff),
        ("/v1/responses", vec![DELTA, COMPLETED], End::Never),
        ("/v1/responses", vec![DELTA, &with_handle], End::Whole),
        ("/v1/responses", vec![&with_handle[..60], &with_handle[60..]], End::Whole),
        ("/v1/messages", vec![DELTA, stop, "data: [DONE]\n\n"], End::Whole),
    ] {
        let canned = Canned::stream(&pieces, end);
        let engine = MockEngine::start(move |_| canned.clone()).await.unwrap();
        let host = in_front_of(&engine).await;
        let events = events_of(&host, path).await;
        let shown = json!(events).to_string();
        assert!(!shown.contains("kv_transfer") && !shown.contains("\"error\""), "{shown}");
        let last = events.iter().rev().find(|event| event.is_object()).unwrap();
        assert!(["response.completed", "message_stop"].contains(&last["type"].as_str().unwrap()), "{shown}");
        host.until_metric(
            "sluice_requests_total",
            &[("outcome", "ok"), ("endpoint", path)],
            |sum| sum == 1.0,
            SOON,
        )
        .await
        .unwrap();
    }
}

const CREATED: &str = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"error\":null}}\n\n";
const MESSAGE_START: &str =
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\"}}\n\n";
const ERROR: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"engine dead\"}}\n\n";
const FAILED: &str = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"id\":\"r\",\
    \"error\":{\"code\":\"server_error\",\"message\":\"engine dead\"}}}\n\n";
const PING: &str = ": ping\n\n";
/// Less than a request has, more than a mock needs.
const FIRST_WORDS_MS: &str = "prefill_timeout_ms = 1_000\nkv_bytes_per_token = 64\nprobe_kv = false\n";

async fn first_words_host(engines: &[&MockEngine]) -> Host {
    let mut plan = HostPlan::new(Mode::Unified);
    plan.pool = FIRST_WORDS_MS.into();
    for engine in engines {
        plan = plan.worker("unified", engine.url());
    }
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    host.until_metric("sluice_worker_up", &[], |up| up == engines.len() as f64, SOON).await.unwrap();
    host
}

/// Until its first words a stream that fails, or that does not come, is another worker's; openings and keep-alives
/// are no words.
#[tokio::test]
async fn streams_that_do_not_begin_are_tried_elsewhere() {
    let pings = [PING; 40];
    for (path, bad, failure) in [
        ("/v1/responses", Canned::stream(&[ERROR], End::Whole), "error_in_answer"),
        ("/v1/responses", Canned::stream(&[CREATED, ERROR], End::Whole), "error_in_answer"),
        ("/v1/responses", Canned::stream(&[CREATED, FAILED], End::Whole), "error_in_answer"),
        ("/v1/messages", Canned::stream(&[MESSAGE_START, ERROR], End::Whole), "error_in_answer"),
        ("/v1/responses", Canned::stream(&[CREATED], End::BrokenOff), "broken"),
        ("/v1/responses", Canned::stream(&[], End::Whole), "broken"),
        ("/v1/responses", Canned::stream(&["data: [DONE]\n\n"], End::Whole), "no_answer"),
        ("/v1/responses", Canned::stream(&[CREATED], End::Never), "late"),
        ("/v1/responses", Canned::stream(&pings, End::Never), "late"),
        ("/v1/responses", Canned::silence(), "late"),
    ] {
        let shown = format!("{path} {bad:?}");
        let bad = MockEngine::start(move |_| bad.clone()).await.unwrap();
        let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
        let last = if path == "/v1/messages" { stop } else { COMPLETED };
        let good = Canned::stream(&[CREATED, DELTA, last], End::Whole);
        let good = MockEngine::start(move |_| good.clone()).await.unwrap();
        let host = first_words_host(&[&bad, &good]).await;
        let mut number = 0;
        while bad.seen().is_empty() {
            number += 1;
            assert!(number < 32, "the bad one is never asked: {shown}");
            let asked = json!({"model": "emulated", "input": format!("number {number}"), "stream": true});
            let stream = host.client().stream(path, &asked, &[]).await.unwrap();
            assert_eq!(stream.status, 200, "{shown}");
            let events = stream.rest().await.unwrap();
            let told: Vec<_> = events.iter().map(|event| event.data.as_str()).collect();
            assert!(told.len() == 3 && !told.concat().contains("engine dead"), "{shown}: {told:?}");
        }
        let metrics = host.metrics().await.unwrap();
        let labels = [("worker", "unified-0"), ("kind", failure)];
        assert_eq!(metrics.sum("sluice_leg_failures_total", &labels), 1.0, "{shown}");
        assert_eq!(metrics.sum("sluice_retries_total", &[("reason", failure)]), 1.0, "{shown}");
        nothing_left_booked(&host, &["unified-0", "unified-1"]).await;
    }
}

/// With nobody else to ask, the client gets the engine's words and a status of an error.
#[tokio::test]
async fn a_stream_that_fails_at_once_is_no_200() {
    for bad in [&[ERROR][..], &[CREATED, FAILED]] {
        let canned = Canned::stream(bad, End::Whole);
        let engine = MockEngine::start(move |_| canned.clone()).await.unwrap();
        let host = in_front_of(&engine).await;
        let asked = json!({"model": "emulated", "input": "hi", "stream": true});
        let reply = host.client().post("/v1/responses", &asked).await.unwrap();
        assert_eq!(error_code(&reply), (500, "engine_failed".into()), "{}", reply.text());
        assert!(reply.text().contains("engine dead"), "{}", reply.text());
        assert!(engine.seen().len() > 1, "it is tried again");
    }
}

/// An engine that says nothing in the middle of a stream does not hold it for as long as a request may take.
#[tokio::test]
async fn a_silent_stream_is_ended() {
    for (path, begun) in [("/v1/responses", [CREATED, DELTA]), ("/v1/messages", [MESSAGE_START, DELTA])] {
        let canned = Canned::stream(&begun, End::Never);
        let engine = MockEngine::start(move |_| canned.clone()).await.unwrap();
        let host = unified_host(&[&engine], "stream_silence_ms = 1_000").await;
        let events = events_of(&host, path).await;
        assert_eq!((events.len(), events[2]["code"].as_str()), (3, Some("stream_silent")), "{events:?}");
        nothing_left_booked(&host, &["unified-0"]).await;
    }
}

/// Half a stream ends in an error event, however its connection ended, and is not tried again.
#[tokio::test]
async fn a_broken_stream_is_told() {
    for (pieces, end) in [
        (&[DELTA, DELTA][..], End::BrokenOff),
        (&[DELTA, DELTA], End::Whole),
        (&[DELTA, "event: response.completed\nda"], End::BrokenOff),
    ] {
        let canned = Canned::stream(pieces, end);
        let engine = MockEngine::start(move |_| canned.clone()).await.unwrap();
        let host = in_front_of(&engine).await;
        let events = events_of(&host, "/v1/responses").await;
        let last = events.last().unwrap();
        assert_eq!(
            (&last["type"], &last["error"]["code"]),
            (&json!("error"), &json!("stream_broken")),
            "{events:?}"
        );
        assert_eq!(engine.seen().len(), 1);
        let labels = [("outcome", "decode_failed")];
        host.until_metric("sluice_requests_total", &labels, |sum| sum == 1.0, SOON).await.unwrap();
    }
}

/// Events are out before the next ones exist, and a client that leaves ends the engine's work.
#[tokio::test]
async fn a_client_that_leaves_closes_the_engines_connection() {
    let engine = MockEngine::start(|request| match request.path.as_str() {
        "/v1/responses" => Canned::stream(&[DELTA], End::Never),
        _ => Canned::silence(),
    })
    .await
    .unwrap();
    let host = in_front_of(&engine).await;
    let asked = json!({"model": "emulated", "input": "hi", "stream": true});
    let mut stream = host.client().stream("/v1/responses", &asked, &[]).await.unwrap();
    stream.next().await.unwrap().expect("the first event");
    assert_eq!(host.worker("unified-0").await.unwrap()["booked"]["requests"], 1);
    drop(stream);
    let waiting = async {
        until("the engine to be asked", SOON, async || (engine.seen().len() == 2).then_some(()))
            .await
            .unwrap();
    };
    tokio::select! {
        reply = host.client().post("/tokenize", &asked) => panic!("silence was answered: {reply:?}"),
        () = waiting => {}
    }
    until("the engine's answers to end", SOON, async || (engine.answering() == 0).then_some(()))
        .await
        .unwrap();
    host.until_metric("sluice_requests_total", &[("outcome", "cancelled")], |sum| sum == 2.0, SOON)
        .await
        .unwrap();
    nothing_left_booked(&host, &["unified-0"]).await;
}
