//! Recorded exchanges with real vLLM, replayed through a host: what it sends is what was sent then, and what its client
//! gets is what vLLM answered, less what is internal. See the README beside the recordings.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use sluice_harness::mock_engine::{End, handle};
use sluice_harness::{Answer, Canned, Host, HostPlan, MockEngine, Mode};

use crate::in_front_of;

/// What must become of a recorded exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// Prefill and decode are asked as recorded, and the client gets decode's answer.
    AsRecorded,
    /// The same, but decode gets no handle: there was none, or one that hangs or ends the engine.
    WithoutHandle,
    /// Decode fails, and the client is told.
    Failure,
    /// Neither leg is built as recorded, whatever the client asks.
    BuiltOtherwise,
    /// The request cannot be split: nobody is asked.
    Refused,
}

const RECORDED: [(&str, Expect); 16] = [
    ("pull_completions", Expect::AsRecorded),
    ("pull_completions_stream", Expect::AsRecorded),
    ("pull_completions_repeat_full_prefix_hit", Expect::AsRecorded),
    ("pull_chat", Expect::AsRecorded),
    ("pull_chat_stream", Expect::AsRecorded),
    ("bidir_completions", Expect::AsRecorded),
    ("err_pull_fail_short_prompt", Expect::AsRecorded),
    ("err_pull_fail_client_abort", Expect::AsRecorded),
    ("err_pull_fail_no_params", Expect::WithoutHandle),
    ("err_pull_missing_host", Expect::WithoutHandle),
    ("err_pull_fail_dead_port", Expect::Failure),
    ("err_pull_fail_wrong_engine", Expect::Failure),
    ("err_pull_fail_bad_type", Expect::BuiltOtherwise),
    ("err_pull_fail_prefill_max8", Expect::BuiltOtherwise),
    ("err_pull_fail_prefill_stream", Expect::BuiltOtherwise),
    ("err_pull_fail_n2", Expect::Refused),
];

const PREFILL_PARAMS: &str = r#"{"do_remote_decode": true, "do_remote_prefill": false}"#;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(name)
}

fn recorded(name: &str) -> Value {
    let file = folder("vllm_wire").join(format!("{name}.json"));
    serde_json::from_slice(&fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
        .unwrap()
}

/// The exchange with one engine; `null` if there was none.
fn exchange(capture: &Value, to: &str) -> Value {
    let exchanges = capture["exchanges"].as_array().unwrap();
    exchanges.iter().find(|exchange| exchange["to"] == to).cloned().unwrap_or_default()
}

fn without(body: &Value, names: &[&str]) -> Value {
    let mut body: Map<_, _> = body.as_object().cloned().unwrap_or_default();
    body.retain(|name, _| !names.contains(&name.as_str()));
    Value::Object(body)
}

fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}

/// An engine's recorded answer, if it gave one.
fn canned(exchange: &Value) -> Option<Canned> {
    let answer = &exchange["response"];
    let status = u16::try_from(answer["status"].as_u64()?).unwrap();
    if let Some(events) = answer["sse_events"].as_array() {
        let text = |event: &Value| event.as_str().map_or_else(|| event.to_string(), str::to_owned);
        let events: Vec<_> = events.iter().map(text).collect();
        return Some(Canned::events(&events.iter().map(String::as_str).collect::<Vec<_>>(), End::Whole));
    }
    Some(Canned::json(status, &answer["body"]))
}

/// The prefill leg of a client's request, as the wire wants it.
fn prefill_of(client: &Value) -> Value {
    let mut body = without(client, &["stream_options", "min_tokens"]);
    if body.get("max_completion_tokens").is_some() {
        body["max_completion_tokens"] = json!(1);
    }
    body["max_tokens"] = json!(1);
    body["stream"] = json!(false);
    with(body, "kv_transfer_params", serde_json::from_str(PREFILL_PARAMS).unwrap())
}

/// A recorded prefill leg without what a router need not send, and with what it may leave out.
fn normalised(recorded: &Value, client: &Value) -> Value {
    let mut body = recorded.clone();
    if client.get("max_completion_tokens").is_none() {
        body = without(&body, &["max_completion_tokens"]);
    }
    // One recorder asked for more at decode alone.
    if let Some(ignore_eos) = client.get("ignore_eos") {
        body["ignore_eos"] = ignore_eos.clone();
    }
    body["stream"] = json!(false);
    let params = body["kv_transfer_params"].as_object_mut().unwrap();
    params.retain(|_, value| !value.is_null());
    params.entry("do_remote_prefill").or_insert(json!(false));
    body
}

/// One recording, ready to be played.
struct Replay {
    name: &'static str,
    path: String,
    client: Value,
    prefill: Value,
    decode: Value,
    prefill_engine: MockEngine,
    decode_engine: MockEngine,
    host: Host,
}

impl Replay {
    async fn of(name: &'static str, expect: Expect) -> Self {
        let capture = recorded(name);
        let (prefill, decode) = (exchange(&capture, "prefill"), exchange(&capture, "decode"));
        let asked = if decode.is_null() { &prefill } else { &decode }["request"].clone();
        // A recording of a bad leg is of what a client might have set.
        let clients_own = if expect == Expect::BuiltOtherwise { "nothing" } else { "kv_transfer_params" };
        let client = without(&asked["body"], &[clients_own]);
        let mut prefilled = canned(&prefill).filter(|_| expect != Expect::BuiltOtherwise);
        if name == "err_pull_missing_host" {
            let broken = decode["request"]["body"]["kv_transfer_params"].clone();
            let answer = with(prefill["response"]["body"].clone(), "kv_transfer_params", broken);
            prefilled = Some(Canned::json(200, &answer));
        }
        if name == "err_pull_fail_no_params" {
            prefilled = Some(Canned::completed());
        }
        let prefilled = prefilled.unwrap_or_else(Canned::prefilled);
        let decoded =
            canned(&decode).filter(|_| expect != Expect::BuiltOtherwise).unwrap_or_else(Canned::completed);
        let prefill_engine = MockEngine::start(move |_| prefilled.clone()).await.unwrap();
        let decode_engine = MockEngine::start(move |_| decoded.clone()).await.unwrap();
        let mut plan = HostPlan::new(Mode::Pull)
            .worker("prefill", prefill_engine.url())
            .worker("decode", decode_engine.url());
        plan.model = "tiny".into();
        let host = Host::start(&plan, &[]).await.unwrap();
        host.until_ready().await.unwrap();
        let path = asked["path"].as_str().unwrap().to_owned();
        Self { name, path, client, prefill, decode, prefill_engine, decode_engine, host }
    }

    async fn ask(&self) -> Answer {
        self.host.client().post(&self.path, &self.client).await.unwrap()
    }

    /// Both legs' first bodies.
    fn legs(&self) -> (Value, Value) {
        let first =
            |engine: &MockEngine| engine.seen().first().map(|leg| leg.body.clone()).unwrap_or_default();
        (first(&self.prefill_engine), first(&self.decode_engine))
    }

    /// The client got the recorded answer, less what is between host and engine.
    fn is_answered(&self, answer: &Answer) {
        let recorded = &self.decode["response"];
        if recorded["status"].is_null() {
            assert_eq!(answer.status, 200, "{}", self.name);
        } else if let Some(events) = recorded["sse_events"].as_array() {
            let parsed = |event: &str| serde_json::from_str(event).unwrap_or(json!(event));
            let text = answer.text();
            let got: Vec<Value> =
                text.split("data: ").skip(1).map(|event| parsed(event.trim_end())).collect();
            assert_eq!(&got, events, "{}", self.name);
        } else {
            let expected = without(&recorded["body"], &["kv_transfer_params", "ec_transfer_params"]);
            assert_eq!((answer.status, answer.json()), (200, expected), "{}", self.name);
        }
        assert!(!answer.text().contains("remote_engine_id"), "{}", self.name);
    }

    async fn play(&self, expect: Expect) {
        let answer = self.ask().await;
        let (prefill, decode) = self.legs();
        let name = self.name;
        match expect {
            Expect::AsRecorded => {
                assert_eq!(prefill, prefill_of(&self.client), "{name}");
                let recorded = normalised(&self.prefill["request"]["body"], &self.client);
                assert_eq!(prefill, recorded, "{name}");
                assert_eq!(decode, self.decode["request"]["body"], "{name}");
                self.is_answered(&answer);
            }
            Expect::WithoutHandle => {
                assert_eq!((prefill, decode), (prefill_of(&self.client), self.client.clone()), "{name}");
                self.is_answered(&answer);
                let fallbacks = [("reason", "transfer_missing")];
                let metrics = self.host.metrics().await.unwrap();
                assert_eq!(metrics.sum("sluice_fallbacks_total", &fallbacks), 1.0, "{name}");
            }
            Expect::Failure => {
                assert_eq!(prefill, prefill_of(&self.client), "{name}");
                assert!(answer.status >= 500, "{name}: {}", answer.text());
                assert!(answer.json()["error"]["message"].is_string(), "{name}: {}", answer.text());
            }
            Expect::BuiltOtherwise => {
                let client = without(&self.client, &["kv_transfer_params"]);
                assert_eq!(prefill, prefill_of(&client), "{name}");
                assert_eq!(decode, with(client, "kv_transfer_params", handle()), "{name}");
                assert_ne!(prefill, self.prefill["request"]["body"], "{name}");
            }
            Expect::Refused => {
                assert_eq!((prefill, decode), (Value::Null, Value::Null), "{name}");
                let code = answer.json()["error"]["code"].clone();
                assert_eq!((answer.status, code), (400, json!("unsplittable_request")), "{name}");
            }
        }
    }
}

#[tokio::test]
async fn recorded_exchanges_are_replayed() {
    let files: BTreeSet<String> = fs::read_dir(folder("vllm_wire"))
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json").map(str::to_owned))
        .filter(|name| name != "other_paths")
        .collect();
    assert_eq!(
        files,
        RECORDED.iter().map(|(name, _)| (*name).to_owned()).collect(),
        "each recording has its line"
    );
    for (name, expect) in RECORDED {
        Replay::of(name, expect).await.play(expect).await;
    }
}

/// Answers of other paths come through whole but for the handles in them, and no client's handle goes in.
#[tokio::test]
async fn other_paths_are_replayed() {
    let capture = recorded("other_paths");
    let exchanges = capture["exchanges"].as_array().unwrap();
    assert_eq!(exchanges.len(), 4);
    for exchange in exchanges {
        let answer = canned(exchange).unwrap();
        let engine = MockEngine::start(move |_| answer.clone()).await.unwrap();
        let mut plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
        plan.model = "tiny".into();
        let host = Host::start(&plan, &[]).await.unwrap();
        host.until_ready().await.unwrap();
        let (path, body) = (exchange["request"]["path"].as_str().unwrap(), &exchange["request"]["body"]);
        let got = host.client().post(path, body).await.unwrap();
        let internal = ["kv_transfer_params", "ec_transfer_params"];
        let expected = without(&exchange["response"]["body"], &internal);
        assert_eq!((got.status, got.json()), (200, expected), "{path}");
        assert_eq!(engine.seen()[0].body, without(body, &internal), "{path}");
    }
}

/// Recorded streams reach the client byte for byte, however the network cuts them; failures in them are told.
#[tokio::test]
async fn recorded_streams_are_relayed() {
    let mut streams = 0;
    for entry in fs::read_dir(folder("vllm_sse")).unwrap().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "sse") {
            continue;
        }
        streams += 1;
        let (name, text) = (path.display().to_string(), fs::read_to_string(&path).unwrap());
        let chat = name.contains("chat_");
        let cuts: Vec<_> = cut(&text, 700);
        let canned = Canned::stream(&cuts, End::Whole);
        let engine = MockEngine::start(move |_| canned.clone()).await.unwrap();
        let host = in_front_of(&engine).await;
        let (path, prompt) = if chat {
            ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "hi"}]}))
        } else {
            ("/v1/completions", json!({"prompt": "hi"}))
        };
        let asked = with(with(prompt, "model", json!("emulated")), "stream", json!(true));
        let answer = host.client().post(path, &asked).await.unwrap();
        if name.contains("failed_load") {
            let told = answer.text();
            assert!(told.contains("\"error\""), "{name}: {told}");
            let ok = host.metrics().await.unwrap().sum("sluice_requests_total", &[("outcome", "ok")]);
            assert_eq!(ok, 0.0, "{name}");
        } else {
            assert_eq!(answer.text(), text, "{name}");
        }
    }
    assert!(streams >= 17, "{streams} streams");
}

/// Pieces of about so many bytes, cut between characters.
fn cut(text: &str, bytes: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut at = bytes.min(rest.len());
        while !rest.is_char_boundary(at) {
            at += 1;
        }
        let (piece, more) = rest.split_at(at);
        pieces.push(piece);
        rest = more;
    }
    pieces
}
