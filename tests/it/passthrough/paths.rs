//! Which paths reach which workers, as the client sent them less what no client may set, and what is refused.

use std::collections::BTreeSet;

use hyper::Method;
use serde_json::json;
use sluice_harness::mock_engine::handle;
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode};

use super::{engine, error_code};
use crate::{in_front_of, nothing_left_booked};

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

async fn pull_host(prefill: &MockEngine, decode: &MockEngine, can_prefill: bool) -> Host {
    let mut plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    plan.workers[1].can_prefill = can_prefill;
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    host
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
