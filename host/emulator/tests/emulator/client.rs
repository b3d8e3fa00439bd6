//! A plain HTTP client, and what all tests here share.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sluice_emulator::{Emulator, EmulatorConfig, Probe, Snapshot, start};
use sluice_sim::TimeModel;
use sluice_sim::oracle::{self, Params};
use sluice_sim::tokens::{Token, text, tokenize};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Nothing here takes long; a test that waits for what never comes fails after this.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Settings for tests: nothing takes time.
pub fn quick() -> EmulatorConfig {
    EmulatorConfig {
        model: "tiny".into(),
        max_model_len: 4_096,
        blocks: 1_024,
        time: TimeModel { time_scale: 0.0, ..TimeModel::default() },
        ..EmulatorConfig::default()
    }
}

pub async fn emulator(config: EmulatorConfig) -> Emulator {
    start(config).await.unwrap()
}

pub struct Answered {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub bytes: Bytes,
}

impl Answered {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| Value::String(self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.bytes.to_vec()).unwrap()
    }

    /// Events of a stream; `[DONE]` is a string.
    pub fn events(&self) -> Vec<Value> {
        let text = self.text();
        let events = text.split("\n\n").filter(|event| !event.is_empty());
        events
            .map(|event| event.strip_prefix("data: ").unwrap())
            .map(|data| serde_json::from_str(data).unwrap_or_else(|_| Value::String(data.into())))
            .collect()
    }
}

/// One request on its own connection. `None` when the connection broke.
pub async fn call(
    to: SocketAddr,
    method: Method,
    path: &str,
    id: Option<&str>,
    body: Option<&Value>,
) -> Option<Answered> {
    let stream = TcpStream::connect(to).await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
    let mut background = JoinSet::new();
    background.spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header("host", to.to_string());
    if let Some(id) = id {
        request = request.header("x-request-id", id);
    }
    let body = body.map(ToString::to_string).unwrap_or_default();
    let exchange = async {
        let response = sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap()).await.ok()?;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.ok()?.to_bytes();
        Some(Answered { status: parts.status, headers: parts.headers, bytes })
    };
    tokio::time::timeout(DEADLINE, exchange).await.expect("no answer in time")
}

pub async fn post(to: &Emulator, path: &str, body: &Value) -> Answered {
    call(to.http_addr(), Method::POST, path, None, Some(body)).await.expect("the connection broke")
}

pub async fn get(to: &Emulator, path: &str) -> Answered {
    call(to.http_addr(), Method::GET, path, None, None).await.expect("the connection broke")
}

pub async fn complete(to: &Emulator, body: &Value) -> Value {
    let answer = post(to, "/v1/completions", body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json()
}

pub fn greedy(prompt: &str, max_tokens: usize) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "return_token_ids": true})
}

/// A request with transfer parameters.
pub fn with_params(mut body: Value, params: Value) -> Value {
    body["kv_transfer_params"] = params;
    body
}

pub fn tokens_of(answer: &Value) -> Vec<Token> {
    let tokens =
        answer["choices"][0]["token_ids"].as_array().unwrap_or_else(|| panic!("no tokens in {answer}"));
    tokens.iter().map(|token| token.as_u64().unwrap() as Token).collect()
}

pub fn right_tokens(prompt: &str, max_tokens: usize) -> Vec<Token> {
    oracle::complete(&tokenize(prompt), max_tokens, &Params::default())
}

pub fn right_text(prompt: &str, max_tokens: usize) -> String {
    text(&right_tokens(prompt, max_tokens))
}

pub async fn until(mut probe: Probe, wanted: impl FnMut(&Snapshot) -> bool) -> Snapshot {
    tokio::time::timeout(DEADLINE, probe.until(wanted)).await.expect("the engine never got there").unwrap()
}

/// One sample of `/metrics`.
pub async fn metric(of: &Emulator, name: &str, label: &str) -> f64 {
    let page = get(of, "/metrics").await.text();
    let wanted = format!("{name}{{");
    let line = page.lines().find(|line| line.starts_with(&wanted) && line.contains(label));
    let line = line.unwrap_or_else(|| panic!("no {name} with {label} in\n{page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
