//! What engines are sent, to the byte, and what of their answers reaches the client.

use serde_json::{Value, json};
use sluice_harness::mock_engine::handle;
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode, Recorded};

use crate::in_front_of;

async fn pair(prefill: &MockEngine, decode: &MockEngine) -> Host {
    let plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    host
}

fn only(seen: Vec<Recorded>) -> Recorded {
    assert_eq!(seen.len(), 1, "{seen:?}");
    seen.into_iter().next().unwrap()
}

/// What no client may set, with values that would be noticed.
fn forbidden() -> Value {
    json!({
        "kv_transfer_params": {"do_remote_prefill": true}, "ec_transfer_params": {"x": 1}, "cache_salt": "salt",
        "request_id": "client-id", "conversation_id": "c-1",
    })
}

fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const CLIENT_HEADERS: [(&str, &str); 6] = [
    ("x-request-id", "client-id"),
    ("x-data-parallel-rank", "3"),
    ("x-kv-hint", "evil"),
    ("authorization", "Bearer key-1"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("tracestate", "vendor=1,other=2"),
];

/// Prefill is asked for one unstreamed token; decode for what the client asked, with the handle unchanged.
#[tokio::test]
async fn both_legs_are_sent_exactly_what_the_wire_wants() {
    let chat = json!({"model": "emulated", "messages": [{"role": "user", "content": "hi"}]});
    let completion = json!({"model": "emulated", "prompt": "hi"});
    let streamed = json!({
        "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 9, "min_tokens": 2, "temperature": 0,
    });
    let one_token = json!({
        "max_tokens": 1, "stream": false,
        "kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false},
    });
    for (path, body, options, prefill_options) in [
        ("/v1/completions", &completion, json!({"max_tokens": 9}), json!({})),
        ("/v1/completions", &completion, streamed.clone(), json!({"temperature": 0})),
        ("/v1/chat/completions", &chat, streamed, json!({"temperature": 0})),
        ("/v1/chat/completions", &chat, json!({}), json!({})),
        (
            "/v1/chat/completions",
            &chat,
            json!({"max_completion_tokens": 9}),
            json!({"max_completion_tokens": 1}),
        ),
    ] {
        let (prefill, decode) =
            (MockEngine::well_behaved().await.unwrap(), MockEngine::well_behaved().await.unwrap());
        let host = pair(&prefill, &decode).await;
        let asked = with(body.clone(), &options);
        let sent = with(asked.clone(), &forbidden());
        let answer = host
            .client()
            .request(hyper::Method::POST, path, sent.to_string().into(), &CLIENT_HEADERS)
            .await
            .unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("x-request-id"), Some("client-id"));

        let (first, second) = (only(prefill.seen()), only(decode.seen()));
        assert_eq!((first.path.as_str(), second.path.as_str()), (path, path));
        assert_eq!(first.body, with(with(body.clone(), &prefill_options), &one_token));
        assert_eq!(second.body, with(asked, &json!({"kv_transfer_params": handle()})));
        headers_are_ours(&first, &second);
    }
}

/// Our own id, the same on both legs, and none of the client's routing headers.
fn headers_are_ours(first: &Recorded, second: &Recorded) {
    let id = first.header("x-request-id").expect("an id of ours");
    assert_eq!(second.header("x-request-id"), Some(id));
    assert!(id.starts_with("slc-") && !id.contains("client"), "{id}");
    for leg in [first, second] {
        assert_eq!(leg.header("x-data-parallel-rank"), None);
        assert_eq!(leg.header("x-kv-hint"), None);
        assert_eq!(leg.header("authorization"), Some("Bearer key-1"));
        assert_eq!(leg.header("traceparent"), Some(CLIENT_HEADERS[4].1));
        assert_eq!(leg.header("tracestate"), Some(CLIENT_HEADERS[5].1));
    }
}

#[tokio::test]
async fn a_worker_that_does_it_all_gets_the_body_less_what_is_stripped() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let host = in_front_of(&engine).await;
    let asked = json!({"model": "emulated", "prompt": "hi", "n": 2, "unknown_member": [1, {"a": null}]});
    host.client().post("/v1/completions", &with(asked.clone(), &forbidden())).await.unwrap();
    assert_eq!(only(engine.seen()).body, asked);
}

/// Two requests never share an id, since engines match legs by it.
#[tokio::test]
async fn ids_are_unique() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let host = in_front_of(&engine).await;
    for _ in 0..3 {
        let body = json!({"model": "emulated", "prompt": "hi"}).to_string();
        let headers = [("x-request-id", "the-same")];
        let post = hyper::Method::POST;
        host.client().request(post, "/v1/completions", body.into(), &headers).await.unwrap();
    }
    let ids: std::collections::BTreeSet<_> =
        engine.seen().iter().filter_map(|leg| leg.header("x-request-id").map(str::to_owned)).collect();
    assert_eq!(ids.len(), 3);
}

/// Handles that hang or end a real decode engine are not forwarded: decode computes the prompt, and it is counted.
#[tokio::test]
async fn unusable_handles_are_not_forwarded() {
    let broken = [
        json!({"do_remote_prefill": true}),
        json!([]),
        json!("a handle"),
        with(handle(), &json!({"remote_host": null})),
        with(handle(), &json!({"remote_block_ids": [1, 2]})),
        with(handle(), &json!({"do_remote_prefill": false})),
    ];
    for handle in broken {
        let answer = json!({
            "id": "cmpl-1", "choices": [{"index": 0, "text": " x", "finish_reason": "length"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 1}, "kv_transfer_params": handle,
        });
        let prefill = MockEngine::start(move |_| Canned::json(200, &answer)).await.unwrap();
        let decode = MockEngine::well_behaved().await.unwrap();
        let host = pair(&prefill, &decode).await;
        let asked = json!({"model": "emulated", "prompt": "hi"});
        assert_eq!(host.client().post("/v1/completions", &asked).await.unwrap().status, 200);
        assert_eq!(only(decode.seen()).body, asked, "{handle}");
        let metrics = host.metrics().await.unwrap();
        assert_eq!(metrics.sum("sluice_transfers_total", &[("handle", "unusable")]), 1.0, "{handle}");
    }
}

/// An engine's refusal of the client's request is the client's to read; an engine's failure is told as that.
#[tokio::test]
async fn engines_errors_are_passed_on() {
    let told =
        json!({"error": {"message": "too long", "type": "BadRequestError", "param": "prompt", "code": 400}});
    for (status, body, expect) in [
        (400, told.to_string(), (400, "refused_by_engine", Some("prompt"), "too long")),
        (422, "not json".to_owned(), (422, "refused_by_engine", None, "unified-0")),
        (500, told.to_string(), (500, "engine_failed", Some("prompt"), "too long")),
        (503, String::new(), (503, "engine_failed", None, "unified-0")),
    ] {
        let engine =
            MockEngine::start(move |_| Canned::text(status, "application/json", body.clone())).await.unwrap();
        let host = in_front_of(&engine).await;
        for stream in [false, true] {
            let asked = json!({"model": "emulated", "prompt": "hi", "stream": stream});
            let answer = host.client().post("/v1/completions", &asked).await.unwrap();
            let error = answer.json()["error"].clone();
            let found = (answer.status, error["code"].as_str().unwrap_or_default(), error["param"].as_str());
            assert_eq!(found, (expect.0, expect.1, expect.2), "{error}");
            assert!(error["message"].as_str().unwrap_or_default().contains(expect.3), "{error}");
        }
    }
}

/// A prefill engine that refuses: decode is never asked.
#[tokio::test]
async fn a_refused_prefill_ends_the_request() {
    let told = json!({"error": {"message": "too long", "param": "prompt"}});
    let prefill = MockEngine::start(move |_| Canned::json(400, &told)).await.unwrap();
    let decode = MockEngine::well_behaved().await.unwrap();
    let host = pair(&prefill, &decode).await;
    let answer =
        host.client().post("/v1/completions", &json!({"model": "emulated", "prompt": "hi"})).await.unwrap();
    assert_eq!((answer.status, &answer.json()["error"]["message"]), (400, &json!("too long")));
    assert_eq!(decode.seen().len(), 0);
}

/// Whatever an upstream sends, the host lives, and the client gets an answer or an error.
#[tokio::test]
async fn garbage_upstreams_do_no_harm() {
    for bytes in [
        &b""[..],
        b"\0\0\0\0",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"choices\":",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\nnull",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {\"choices\":[\n\ndata: 7\n\nda",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZZ\r\n",
        b"HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
    ] {
        let shown = String::from_utf8_lossy(bytes);
        for mode in [Mode::Unified, Mode::Pull] {
            let engine = MockEngine::raw(bytes).await.unwrap();
            let plan = match mode {
                Mode::Unified => HostPlan::new(mode).worker("unified", engine.url()),
                Mode::Pull | Mode::Bidirectional | Mode::HostManaged => {
                    let other = engine.url().replace("127.0.0.1", "localhost");
                    HostPlan::new(mode).worker("prefill", engine.url()).worker("decode", &other)
                }
            };
            let host = Host::start(&plan, &[]).await.unwrap();
            host.until_ready().await.unwrap();
            let answer = host
                .client()
                .post("/v1/completions", &json!({"model": "emulated", "prompt": "hi"}))
                .await
                .unwrap();
            let is_told = answer.status >= 500 && answer.json()["error"]["message"].is_string();
            assert!(answer.status == 200 || is_told, "{shown:?}: {} {}", answer.status, answer.text());
            assert_eq!(host.client().get("/health").await.unwrap().status, 200, "{shown:?}");
            let in_flight = host.metrics().await.unwrap().sum("sluice_in_flight_requests", &[]);
            assert_eq!(in_flight, 0.0, "{shown:?}");
        }
    }
}
