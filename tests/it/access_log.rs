//! One line a request, for those who ask for it.

use hyper::Method;
use serde_json::{Value, json};
use sluice_harness::mock_engine::End;
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode, until};

use crate::SOON;

async fn host(engine: &MockEngine, telemetry: &str) -> Host {
    let plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    let plan = HostPlan { telemetry: telemetry.to_owned(), log_json: true, ..plan };
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    host
}

async fn ask(host: &Host, body: &Value) -> u16 {
    let headers = [("x-request-id", "from\tclient"), ("authorization", "Bearer secret-key")];
    let answer =
        host.client().request(Method::POST, "/v1/completions", body.to_string().into(), &headers).await;
    answer.unwrap().status
}

fn lines(host: &Host) -> Vec<Value> {
    let lines = host.log().lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    let fields = lines.into_iter().map(|line| line["fields"].clone());
    fields.filter(|fields| fields["message"] == "request").collect()
}

#[tokio::test]
async fn each_request_is_a_line_without_secrets() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let host = host(&engine, "access_log = true").await;
    assert_eq!(ask(&host, &json!({"model": "emulated", "prompt": "a private matter"})).await, 200);
    assert_eq!(ask(&host, &json!({"model": "no such", "prompt": "a private matter"})).await, 404);
    let lines =
        until("two lines", SOON, async || Some(lines(&host)).filter(|lines| lines.len() == 2)).await.unwrap();
    for (field, value) in [
        ("client_request", json!("from?client")),
        ("endpoint", json!("/v1/completions")),
        ("model", json!("emulated")),
        ("pool", json!("main")),
        ("policy", json!("builtin")),
        ("source", json!("builtin")),
        ("decode", json!("unified-0")),
        ("attempts", json!(1)),
        ("outcome", json!("ok")),
        ("status", json!(200)),
        ("prompt_tokens", json!(7)),
        ("output_tokens", json!(2)),
    ] {
        assert_eq!(lines[0][field], value, "{field}: {}", lines[0]);
    }
    assert!(lines[0]["request"].as_str().unwrap().starts_with("slc-"));
    assert!(lines[0]["tenant"].is_string() && lines[0]["total_ms"].is_number(), "{}", lines[0]);
    for (field, value) in [
        ("outcome", json!("client_error")),
        ("status", json!(404)),
        ("error", json!("model_not_found")),
        ("attempts", json!(0)),
    ] {
        assert_eq!(lines[1][field], value, "{field}: {}", lines[1]);
    }
    let log = host.log();
    assert!(!log.contains("secret-key") && !log.contains("private matter"), "{log}");
}

/// What failed on the way, and what was decided, stand in the line as in the decision header.
#[tokio::test]
async fn a_line_tells_what_failed() {
    let engine = MockEngine::start(|_| Canned::json(500, &json!({}))).await.unwrap();
    let host = host(&engine, "access_log = true").await;
    assert_eq!(ask(&host, &json!({"model": "emulated", "prompt": "hi"})).await, 500);
    let lines =
        until("a line", SOON, async || Some(lines(&host)).filter(|lines| lines.len() == 1)).await.unwrap();
    let failed = lines[0]["failed"].as_str().unwrap();
    assert!(failed.starts_with("unified-0:status_5xx,"), "{}", lines[0]);
    assert_eq!(lines[0]["placement"], "unified", "{}", lines[0]);
    assert!(lines[0]["reason"].is_string(), "{}", lines[0]);
}

/// A stream's line tells when its first token came.
#[tokio::test]
async fn a_stream_tells_its_first_token() {
    let chunk = r#"{"choices":[{"index":0,"text":" x","finish_reason":null}]}"#;
    let engine =
        MockEngine::start(move |_| Canned::events(&[chunk, chunk, "[DONE]"], End::Whole)).await.unwrap();
    let host = host(&engine, "access_log = true").await;
    assert_eq!(ask(&host, &json!({"model": "emulated", "prompt": "hi", "stream": true})).await, 200);
    let lines =
        until("a line", SOON, async || Some(lines(&host)).filter(|lines| lines.len() == 1)).await.unwrap();
    let (first, total) = (lines[0]["ttft_ms"].as_f64().unwrap(), lines[0]["total_ms"].as_f64().unwrap());
    assert!(first > 0.0 && first <= total, "{}", lines[0]);
    assert_eq!(lines[0]["output_tokens"], 2, "{}", lines[0]);
}

#[tokio::test]
async fn nobody_who_did_not_ask_gets_lines() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let mut host = host(&engine, "").await;
    assert_eq!(ask(&host, &json!({"model": "emulated", "prompt": "hi"})).await, 200);
    host.process().terminate().unwrap();
    assert_eq!(host.process().ended(SOON).await.unwrap(), Some(0));
    assert_eq!(lines(&host), Vec::<Value>::new());
}
