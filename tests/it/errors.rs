//! Errors in OpenAI's shape: a message, a type, the member at fault, and a code for programs.

use bytes::Bytes;
use hyper::Method;
use serde_json::json;
use sluice_harness::{Answer, Ask, FleetPlan, Host, HostPlan, MockEngine, Mode};

use sluice_sim::Sampling;
use sluice_sim::oracle::{Params, complete};
use sluice_sim::tokens::{text, tokenize};

use crate::right;

/// What an error must be: status, `param`, `code`.
type Expect = (u16, Option<&'static str>, &'static str);

fn check(answer: &Answer, expect: Expect, what: &str) {
    let error = &answer.json()["error"];
    let found = (answer.status, error["param"].as_str(), error["code"].as_str());
    assert_eq!(found, (expect.0, expect.1, Some(expect.2)), "{what}: {}", answer.text());
    let message = error["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty() && error["type"].is_string(), "{what}: {error}");
    assert_eq!(answer.header("content-type"), Some("application/json"), "{what}");
}

async fn host() -> (MockEngine, Host) {
    let engine = MockEngine::well_behaved().await.unwrap();
    let mut plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    plan.server = "max_body_bytes = 4096".into();
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    (engine, host)
}

#[tokio::test]
async fn bad_requests_are_told_what_is_wrong() {
    let (engine, host) = host().await;
    let long = format!(r#"{{"model":"emulated","prompt":"{}"}}"#, "x".repeat(5_000));
    let (chat, completions) = ("/v1/chat/completions", "/v1/completions");
    let table: [(Method, &str, &str, Expect); 10] = [
        (
            Method::POST,
            completions,
            r#"{"model":"other","prompt":"x"}"#,
            (404, Some("model"), "model_not_found"),
        ),
        (Method::POST, completions, "{not json", (400, None, "invalid_json")),
        (Method::POST, completions, "", (400, None, "invalid_json")),
        (
            Method::POST,
            chat,
            r#"{"model":"emulated"}"#,
            (400, Some("messages"), "missing_required_parameter"),
        ),
        (Method::POST, chat, r#"{"messages":[]}"#, (400, Some("model"), "missing_required_parameter")),
        (
            Method::POST,
            chat,
            r#"{"model":"emulated","messages":"x"}"#,
            (400, Some("messages"), "invalid_type"),
        ),
        (Method::POST, completions, &long, (413, None, "request_too_large")),
        (Method::GET, completions, "", (405, None, "method_not_allowed")),
        (Method::POST, "/v1/models", "{}", (405, None, "method_not_allowed")),
        (Method::POST, "/v1/fine_tunes", "{}", (404, None, "not_found")),
    ];
    for (method, path, body, expect) in table {
        let what = format!("{method} {path} {}", &body[..body.len().min(60)]);
        let answer = host.client().request(method, path, Bytes::from(body.to_owned()), &[]).await.unwrap();
        check(&answer, expect, &what);
    }
    assert_eq!(engine.seen().len(), 0, "no bad request reaches an engine");
}

#[tokio::test]
async fn the_model_error_names_what_is_served() {
    let (_engine, host) = host().await;
    let answer =
        host.client().post("/v1/completions", &json!({"model": "other", "prompt": "x"})).await.unwrap();
    let error = answer.json()["error"].clone();
    assert_eq!(error["type"], "invalid_request_error");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("\"other\"") && message.contains("emulated"), "{message}");
}

/// Several answers to one prompt cannot be split over prefill and decode.
#[tokio::test]
async fn what_cannot_be_split_needs_a_worker_that_serves_alone() {
    let two = json!({"model": "emulated", "prompt": "hello", "max_tokens": 4, "n": 2});

    let fleet = FleetPlan::pull(1, 1).start().await.unwrap();
    let answer = fleet.client().post("/v1/completions", &two).await.unwrap();
    check(&answer, (400, Some("n"), "unsplittable_request"), "n = 2");
    assert!(answer.text().contains("can_prefill"), "{}", answer.text());
    right(fleet.client(), &Ask::completion("hello", 4)).await;

    let plan = FleetPlan { can_prefill: true, ..FleetPlan::pull(1, 1) };
    let fleet = plan.start().await.unwrap();
    let ask = Ask::completion("hello", 4).with("n", 2).with("temperature", 1).with("seed", 5);
    let reply = fleet.client().ask(&ask).await.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    let decision = reply.decision.unwrap();
    assert_eq!((decision.placement.as_str(), decision.decode.as_str()), ("unified", "decode-0"));
    let choices = reply.body["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    for (choice, right) in choices.iter().zip(0..) {
        let params = Params { sampling: Sampling::Seeded(5), choice: right, ..Params::default() };
        assert_eq!(choice["text"], text(&complete(&tokenize("hello"), 4, &params)), "choice {right}");
    }
}

/// The host's own refusals leave the client's request id on the answer, as answers do.
#[tokio::test]
async fn errors_carry_the_clients_request_id() {
    let (_engine, host) = host().await;
    let headers = [("x-request-id", "mine-1")];
    let answer =
        host.client().request(Method::POST, "/v1/completions", Bytes::from("{"), &headers).await.unwrap();
    assert_eq!((answer.status, answer.header("x-request-id")), (400, Some("mine-1")));
}
