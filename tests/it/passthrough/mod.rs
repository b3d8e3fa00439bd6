//! Other paths that engines serve: passed whole to one worker that may serve them, and passed back as they come.

mod attempts;
mod paths;
mod streams;

use serde_json::{Value, json};
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode};

async fn engine(answer: Value) -> MockEngine {
    MockEngine::start(move |_| Canned::json(200, &answer)).await.unwrap()
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
