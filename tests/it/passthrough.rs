//! Other paths that engines serve: passed whole to one worker that may serve them, and passed back as they come.

use std::collections::BTreeSet;

use hyper::Method;
use serde_json::{Value, json};
use sluice_harness::mock_engine::{End, handle};
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode, until};

use crate::{SOON, in_front_of, nothing_left_booked};

/// Who must get a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    /// A worker that serves alone.
    Alone,
    /// Any worker.
    Anyone,
    /// Nobody: it is refused.
    Nobody,
}

/// Every path that is passed on, and those that are refused.
const PATHS: [(&str, Who); 16] = [
    ("/v1/responses", Who::Alone),
    ("/v1/messages", Who::Alone),
    ("/v1/messages/count_tokens", Who::Anyone),
    ("/v1/embeddings", Who::Anyone),
    ("/pooling", Who::Anyone),
    ("/classify", Who::Anyone),
    ("/score", Who::Anyone),
    ("/v1/score", Who::Anyone),
    ("/rerank", Who::Anyone),
    ("/v1/rerank", Who::Anyone),
    ("/v2/rerank", Who::Anyone),
    ("/v2/embed", Who::Anyone),
    ("/tokenize", Who::Anyone),
    ("/detokenize", Who::Anyone),
    ("/v1/audio/transcriptions", Who::Nobody),
    ("/v1/audio/translations", Who::Nobody),
];

/// Not to be reached by clients: they steer engines, or hand KV blocks around.
const STEERING: [&str; 8] = [
    "/inference/v1/generate",
    "/reset_prefix_cache",
    "/sleep",
    "/wake_up",
    "/v1/load_lora_adapter",
    "/collective_rpc",
    "/abort_requests",
    "/v1/embeddings/",
];

async fn engine(answer: Value) -> MockEngine {
    MockEngine::start(move |_| Canned::json(200, &answer)).await.unwrap()
}

async fn pull_host(prefill: &MockEngine, decode: &MockEngine, can_prefill: bool) -> Host {
    let mut plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    plan.workers[1].can_prefill = can_prefill;
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    host
}

async fn unified_host(engines: &[&MockEngine], server: &str) -> Host {
    let mut plan = HostPlan::new(Mode::Unified);
    plan.server = server.into();
    for engine in engines {
        plan = plan.worker("unified", engine.url());
    }
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    host
}

fn error_code(answer: &sluice_harness::Answer) -> (u16, String) {
    (answer.status, answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// The table above is the host's own: what its 404 lists, and what it refuses.
#[tokio::test]
async fn the_table_is_whole() {
    let host = in_front_of(&MockEngine::well_behaved().await.unwrap()).await;
    let told = host.client().get("/nothing").await.unwrap();
    assert_eq!(error_code(&told), (404, "not_found".into()));
    let message = told.json()["error"]["message"].as_str().unwrap().to_owned();
    let listed: BTreeSet<_> =
        message.split("POST ").skip(1).filter_map(|rest| rest.split(", ").next()).collect();
    let decided = ["/v1/chat/completions", "/v1/completions"];
    let passed = PATHS.iter().filter(|(_, who)| *who != Who::Nobody).map(|(path, _)| *path);
    assert_eq!(listed, passed.chain(decided).collect());
}

/// Each path reaches a worker that may serve it, as the client sent it less what no client may set; nobody else.
#[tokio::test]
async fn each_path_reaches_who_may_serve_it() {
    let answer = json!({"id": "x", "data": [1], "kv_transfer_params": handle()});
    let (prefill, decode) = (engine(answer.clone()).await, engine(answer).await);
    let host = pull_host(&prefill, &decode, true).await;
    let headers = [
        ("x-request-id", "mine"),
        ("x-data-parallel-rank", "3"),
        ("authorization", "Bearer key-1"),
        ("cookie", "secret"),
    ];
    let asked = json!({"model": "emulated", "input": "hi", "unknown": [1, null]});
    let mut sent = asked.clone();
    for name in ["kv_transfer_params", "ec_transfer_params", "cache_salt", "request_id", "conversation_id"] {
        sent[name] = json!("x");
    }
    for (path, who) in PATHS {
        let before = (prefill.seen().len(), decode.seen().len());
        let reply =
            host.client().request(Method::POST, path, sent.to_string().into(), &headers).await.unwrap();
        assert_eq!(reply.header("x-request-id"), Some("mine"), "{path}");
        let (at_prefill, at_decode) = (prefill.seen().len() - before.0, decode.seen().len() - before.1);
        if who == Who::Nobody {
            assert_eq!(error_code(&reply), (415, "form_not_routed".into()), "{path}");
            assert_eq!(at_prefill + at_decode, 0, "{path}");
            continue;
        }
        assert_eq!((reply.status, reply.json()), (200, json!({"id": "x", "data": [1]})), "{path}");
        assert_eq!(at_prefill + at_decode, 1, "{path}");
        assert!(who != Who::Alone || at_decode == 1, "{path} went to a prefill worker");
        let seen = if at_decode == 1 { decode.seen() } else { prefill.seen() };
        let leg = seen.last().unwrap();
        assert_eq!((leg.path.as_str(), &leg.body), (path, &asked));
        assert!(leg.header("x-request-id").unwrap().starts_with("slc-"), "{path}");
        assert_eq!(leg.header("authorization"), Some("Bearer key-1"), "{path}");
        assert_eq!((leg.header("x-data-parallel-rank"), leg.header("cookie")), (None, None), "{path}");
        let counted = host
            .metrics()
            .await
            .unwrap()
            .sum("sluice_requests_total", &[("endpoint", path), ("outcome", "ok")]);
        assert_eq!(counted, 1.0, "{path}");
    }
    nothing_left_booked(&host, &["prefill-0", "decode-0"]).await;
}

/// What generates is not split; with nobody who serves alone, the client is told what to configure.
#[tokio::test]
async fn generating_paths_need_a_worker_that_serves_alone() {
    let (prefill, decode) = (engine(json!({"tokens": []})).await, engine(json!({"tokens": []})).await);
    let host = pull_host(&prefill, &decode, false).await;
    for (path, who) in PATHS {
        let reply = host.client().post(path, &json!({"model": "emulated", "input": "hi"})).await.unwrap();
        match who {
            Who::Alone => {
                assert_eq!(error_code(&reply), (400, "unsplittable_request".into()), "{path}");
                assert!(reply.text().contains("can_prefill"), "{}", reply.text());
            }
            Who::Anyone => assert_eq!(reply.status, 200, "{path}"),
            Who::Nobody => assert_eq!(reply.status, 415, "{path}"),
        }
    }
    assert_eq!(host.metrics().await.unwrap().sum("sluice_retries_total", &[]), 0.0);
}

#[tokio::test]
async fn what_steers_engines_is_not_reached() {
    let engine = engine(json!({"id": "x"})).await;
    let host = in_front_of(&engine).await;
    for path in STEERING {
        let reply = host.client().post(path, &json!({"model": "emulated"})).await.unwrap();
        assert_eq!(error_code(&reply), (404, "not_found".into()), "{path}");
    }
    assert_eq!(
        error_code(&host.client().get("/v1/embeddings").await.unwrap()),
        (405, "method_not_allowed".into())
    );
    assert_eq!(engine.seen().len(), 0);
}

#[tokio::test]
async fn bad_requests_are_told_and_reach_nobody() {
    let engine = engine(json!({"id": "x"})).await;
    let host = in_front_of(&engine).await;
    for (path, body, expected) in [
        ("/v1/embeddings", json!({"model": "other", "input": "x"}), (404, "model_not_found")),
        ("/v1/embeddings", json!({"input": "x"}), (400, "missing_required_parameter")),
        ("/tokenize", json!([1]), (400, "invalid_json")),
        ("/v1/responses", json!({"model": "emulated", "background": true}), (400, "unsupported_parameter")),
    ] {
        let reply = host.client().post(path, &body).await.unwrap();
        assert_eq!(error_code(&reply), (expected.0, expected.1.into()), "{path} {body}");
    }
    assert_eq!(engine.seen().len(), 0);
    let counted = host.metrics().await.unwrap().sum("sluice_requests_total", &[("outcome", "client_error")]);
    assert_eq!(counted, 4.0);
}

/// An engine's refusal reaches the client; a path that the engines do not know is told as that.
#[tokio::test]
async fn refusals_are_told() {
    for (status, body, expected) in [
        (
            400,
            json!({"error": {"message": "too long", "param": "input"}}),
            (400, "refused_by_engine", "too long"),
        ),
        (404, json!({"detail": "Not Found"}), (404, "path_not_served", "do not serve /v1/embeddings")),
        (404, json!({"error": {"message": "no such model"}}), (404, "refused_by_engine", "no such model")),
        (501, json!({"error": {"message": "no embeddings"}}), (501, "engine_failed", "no embeddings")),
    ] {
        let engine = MockEngine::start(move |_| Canned::json(status, &body)).await.unwrap();
        let host = in_front_of(&engine).await;
        let reply =
            host.client().post("/v1/embeddings", &json!({"model": "emulated", "input": "x"})).await.unwrap();
        assert_eq!(error_code(&reply), (expected.0, expected.1.into()), "{}", reply.text());
        assert!(reply.text().contains(expected.2), "{}", reply.text());
        assert_eq!(engine.seen().len(), 1, "{status} is final");
        assert_eq!(host.metrics().await.unwrap().sum("sluice_leg_failures_total", &[]), 0.0);
    }
}

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

const DELTA: &str =
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n";
const COMPLETED: &str =
    "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\"}}\n\n";

async fn events_of(host: &Host, path: &str) -> Vec<Value> {
    let asked = json!({"model": "emulated", "input": "hi", "stream": true});
    let stream = host.client().stream(path, &asked, &[]).await.unwrap();
    assert_eq!(stream.status, 200);
    assert!(stream.header("content-type").unwrap().starts_with("text/event-stream"));
    let events = stream.rest().await.unwrap();
    events.into_iter().map(|event| serde_json::from_str(&event.data).unwrap_or(json!(event.data))).collect()
}

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

#[tokio::test]
async fn one_model_is_shown_by_its_name() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let mut plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    plan.model = "org/model".into();
    let host = Host::start(&plan, &[]).await.unwrap();
    for path in ["/v1/models/org/model", "/v1/models/org%2Fmodel"] {
        let card = host.client().get(path).await.unwrap();
        assert_eq!(
            (card.status, &card.json()["id"], &card.json()["object"]),
            (200, &json!("org/model"), &json!("model"))
        );
    }
    let missing = host.client().get("/v1/models/other").await.unwrap();
    assert_eq!(error_code(&missing), (404, "model_not_found".into()));
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
