//! The shape of every answer, member by member, against what a real vLLM sent for the same request.

use std::collections::BTreeSet;
use std::path::PathBuf;

use http::Method;
use serde_json::{Map, Value, json};
use sluice_emulator::{Emulator, EmulatorConfig};

use crate::client::*;

fn case_file(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Values whose text is part of the wire; of all others only the kind is compared.
const LITERAL: [&str; 10] = [
    "object",
    "role",
    "transfer_mode",
    "type",
    "param",
    "message_text",
    "do_remote_prefill",
    "do_remote_decode",
    "allow_sampling",
    "organization",
];

/// Replaces values by their kinds; lists of numbers by one of their elements.
fn shape(key: &str, value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            Value::Object(members.iter().map(|(key, value)| (key.clone(), shape(key, value))).collect())
        }
        Value::Array(items) => items.iter().take(1).map(|item| shape(key, item)).collect(),
        _ if LITERAL.contains(&key) => value.clone(),
        Value::String(_) => json!("text"),
        Value::Number(_) => json!("number"),
        other => other.clone(),
    }
}

/// Shapes of events, equal neighbours once.
fn shapes(events: &[Value]) -> Vec<Value> {
    let mut shapes: Vec<Value> = events.iter().map(|event| shape("", event)).collect();
    shapes.dedup();
    shapes
}

struct Replay {
    prefill: Emulator,
    decode: Emulator,
    /// What the last prefill leg answered.
    params: Map<String, Value>,
}

impl Replay {
    async fn new(bidirectional: bool) -> Self {
        let config =
            EmulatorConfig { block_tokens: 32, report_cached_tokens: false, bidirectional, ..quick() };
        Self { prefill: emulator(config.clone()).await, decode: emulator(config).await, params: Map::new() }
    }

    /// The request as recorded, but with our own engine's handle.
    fn body(&self, exchange: &Value) -> Option<Value> {
        let mut body = exchange["request"]["body"].clone();
        if body["kv_transfer_params"]["do_remote_prefill"] == json!(true) {
            let mut params = self.params.clone();
            params.extend(exchange["changed_params"].as_object().cloned().unwrap_or_default());
            body["kv_transfer_params"] = Value::Object(params);
        }
        (!body.is_null()).then_some(body)
    }

    async fn check(&mut self, exchange: &Value) {
        let to = if exchange["to"] == "decode" { &self.decode } else { &self.prefill };
        let request = &exchange["request"];
        let method: Method = request["method"].as_str().unwrap().parse().unwrap();
        let id = request["headers"]["X-Request-Id"].as_str();
        let body = self.body(exchange);
        let path = request["path"].as_str().unwrap();
        let answer = call(to.http_addr(), method, path, id, body.as_ref()).await.unwrap();
        let expect = &exchange["response"];
        let step = &exchange["step"];
        assert_eq!(answer.status.as_u16(), expect["status"], "{step}: {}", answer.text());
        let header = |name: &str| answer.headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(header("content-type"), expect["headers"]["content-type"].as_str(), "{step}");
        let expect_id = expect["headers"]["x-request-id"].as_str().unwrap();
        match id {
            Some(_) => assert_eq!(header("x-request-id"), Some(expect_id), "{step}"),
            None => assert_eq!(header("x-request-id").map(str::len), Some(expect_id.len()), "{step}"),
        }
        if let Some(events) = expect["sse_events"].as_array() {
            assert_eq!(shapes(&answer.events()), shapes(events), "{step}");
            return;
        }
        let (body, expect) = (answer.json(), &expect["body"]);
        if expect["error"].is_object() {
            assert_eq!(&body, expect, "{step}");
        }
        assert_eq!(shape("", &body), shape("", expect), "{step}");
        if let (Some(id), Some(expect_id)) = (body["id"].as_str(), expect["id"].as_str()) {
            assert_eq!(id, expect_id, "{step}");
        }
        if let Some(params) = body["kv_transfer_params"].as_object() {
            self.params = params.clone();
        }
    }
}

#[tokio::test]
async fn answers_have_the_shape_of_vllms() {
    for case in [
        "pull_chat",
        "pull_chat_stream",
        "pull_completions",
        "pull_completions_stream",
        "bidir_completions",
        "bidir_chat_stream",
        "err_pull_fail_bad_type",
        "err_pull_fail_n2",
        "err_pull_fail_no_params",
        "err_pull_fail_prefill_max8",
        "err_pull_fail_prefill_stream",
        "err_pull_fail_wrong_engine",
        "endpoints",
    ] {
        let recorded: Value = serde_json::from_str(&case_file(&format!("{case}.json"))).unwrap();
        let mut replay = Replay::new(recorded["bidirectional"] == json!(true)).await;
        let exchanges = recorded["exchanges"].as_array().unwrap();
        assert!(!exchanges.is_empty(), "{case}");
        for exchange in exchanges {
            println!("{case}: {}", exchange["step"]);
            replay.check(exchange).await;
        }
    }
}

#[tokio::test]
async fn metrics_have_vllms_names_kinds_and_labels() {
    let engine = emulator(quick()).await;
    complete(&engine, &greedy("hello", 4)).await;
    let page = get(&engine, "/metrics").await.text();
    let types = case_file("metric_types.txt");
    let types: BTreeSet<&str> = types.lines().collect();
    let labels = |line: &str| {
        let Some((name, rest)) = line.split_once('{') else {
            return (line.split(' ').next().unwrap().to_owned(), BTreeSet::new());
        };
        let pairs = rest.rsplit_once('}').unwrap().0.split(',');
        // Bucket bounds depend on the model's limits; label names do not.
        let pairs: BTreeSet<String> =
            pairs.map(|pair| if pair.starts_with("le=") { "le".into() } else { pair.to_owned() }).collect();
        (name.to_owned(), pairs)
    };
    let series = case_file("metric_series.txt");
    let series: BTreeSet<_> = series.lines().map(labels).collect();
    let mut samples = 0;
    for line in page.lines() {
        if line.starts_with("# TYPE") {
            assert!(types.contains(line), "{line}");
        } else if !line.starts_with('#') && !line.starts_with("vllm:cache_config_info") {
            assert!(series.contains(&labels(line)), "{line}");
            samples += 1;
        }
    }
    assert!(samples > 40, "{samples}");
    let cache = page.lines().find(|line| line.starts_with("vllm:cache_config_info")).unwrap();
    assert!(cache.contains("block_size=\"16\"") && cache.contains("num_gpu_blocks=\"1024\""), "{cache}");
}
