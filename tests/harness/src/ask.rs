//! A generation request, the answer it must get, and the answer it got.

use std::time::Duration;

use hyper::Method;
use hyper::header::HeaderMap;
use serde_json::{Map, Value, json};
use sluice_sim::Model;
use sluice_sim::chat::{Message, render};
use sluice_sim::oracle::{Params, complete};
use sluice_sim::tokens::{END, Token, text, tokenize};
use tokio::time::Instant;

use crate::client::Event;
use crate::decision::{DECISION_HEADER, Decision};
use crate::{Client, HarnessError};

/// A generation endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

impl Endpoint {
    /// The path.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }
}

/// A greedy generation request to the default model.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Where it goes.
    pub endpoint: Endpoint,
    /// Its body.
    pub body: Map<String, Value>,
    /// Its headers; the decision is always asked for.
    pub headers: Vec<(String, String)>,
    prompt: String,
    max_tokens: usize,
}

/// The right answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Of the answer.
    pub text: String,
    /// `stop` or `length`.
    pub finish_reason: &'static str,
    /// As `usage` counts them.
    pub prompt_tokens: usize,
    /// As `usage` counts them: the end counts.
    pub completion_tokens: usize,
}

/// An answer, read.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// As they came.
    pub headers: HeaderMap,
    /// All text of the first choice.
    pub text: String,
    /// Of the first choice.
    pub finish_reason: Option<String>,
    /// `usage.prompt_tokens`
    pub prompt_tokens: Option<u64>,
    /// `usage.completion_tokens`
    pub completion_tokens: Option<u64>,
    /// `usage.prompt_tokens_details.cached_tokens`, 0 when it is not there.
    pub cached_tokens: u64,
    /// The `error` member, of the body or of an event.
    pub error: Option<Value>,
    /// Whether a stream ended with `[DONE]`.
    pub done: bool,
    /// Payloads of a stream's events.
    pub events: Vec<String>,
    /// The body of a whole answer.
    pub body: Value,
    /// From sending to the first text of a stream.
    pub first_token: Option<Duration>,
    /// Mean time between the tokens of a stream after the first.
    pub per_token: Option<Duration>,
    /// From sending to the end.
    pub took: Duration,
    /// What the host decided.
    pub decision: Option<Decision>,
}

impl Ask {
    /// A completion of a text.
    pub fn completion(prompt: &str, max_tokens: usize) -> Self {
        Self::new(Endpoint::Completions, "prompt", json!(prompt), prompt.to_owned(), max_tokens)
    }

    /// The next message of a chat.
    pub fn chat(messages: &[Message], max_tokens: usize) -> Self {
        let written: Vec<_> = messages
            .iter()
            .map(|message| json!({"role": message.role, "content": message.content}))
            .collect();
        Self::new(Endpoint::Chat, "messages", json!(written), render(messages, true), max_tokens)
    }

    /// A chat of one message.
    pub fn question(question: &str, max_tokens: usize) -> Self {
        Self::chat(&[message("user", question)], max_tokens)
    }

    fn new(endpoint: Endpoint, member: &str, value: Value, prompt: String, max_tokens: usize) -> Self {
        let mut body = Map::new();
        body.insert("model".into(), json!("emulated"));
        body.insert(member.into(), value);
        body.insert("max_tokens".into(), json!(max_tokens));
        body.insert("temperature".into(), json!(0));
        Self { endpoint, body, headers: Vec::new(), prompt, max_tokens }
    }

    /// The same, answered in events, with usage at the end.
    pub fn streamed(self) -> Self {
        self.with("stream", true).with("stream_options", json!({"include_usage": true}))
    }

    /// The same with one more member, which the right answer does not depend on.
    pub fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.body.insert(member.into(), value.into());
        self
    }

    /// The same with one more header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Whether it asks for a stream.
    pub fn streams(&self) -> bool {
        self.body.get("stream") == Some(&Value::Bool(true))
    }

    /// The body.
    pub fn json(&self) -> Value {
        Value::Object(self.body.clone())
    }

    /// The prompt as an engine sees it.
    pub fn prompt_tokens(&self) -> Vec<Token> {
        tokenize(&self.prompt)
    }

    /// The right answer as an engine writes it.
    pub fn answer_tokens(&self) -> Vec<Token> {
        complete(&self.prompt_tokens(), self.max_tokens, &Params::default())
    }

    /// The right answer of an engine with default weights, computed without any cache.
    pub fn expected(&self) -> Expected {
        self.expected_of(Model::default())
    }

    /// The right answer of an engine with this model.
    pub fn expected_of(&self, model: Model) -> Expected {
        let prompt = self.prompt_tokens();
        let answer = complete(&prompt, self.max_tokens, &Params { model, ..Params::default() });
        let finish_reason = if answer.last() == Some(&END) { "stop" } else { "length" };
        Expected {
            text: text(&answer),
            finish_reason,
            prompt_tokens: prompt.len(),
            completion_tokens: answer.len(),
        }
    }
}

/// One message of a chat.
pub fn message(role: &str, content: &str) -> Message {
    Message { role: role.into(), content: content.into() }
}

impl Expected {
    /// Says what is wrong with an answer, if anything is.
    pub fn differs_from(&self, reply: &Reply) -> Option<String> {
        if reply.status != 200 || reply.error.is_some() {
            return Some(format!("status {}, error {:?}", reply.status, reply.error));
        }
        if reply.text != self.text {
            return Some(format!("text is {:?}, right is {:?}", reply.text, self.text));
        }
        if reply.finish_reason.as_deref() != Some(self.finish_reason) {
            return Some(format!(
                "finish_reason is {:?}, right is {:?}",
                reply.finish_reason, self.finish_reason
            ));
        }
        let counted = (reply.prompt_tokens, reply.completion_tokens);
        let right = (Some(self.prompt_tokens as u64), Some(self.completion_tokens as u64));
        (counted != right).then(|| format!("usage (prompt, completion) is {counted:?}, right is {right:?}"))
    }
}

impl Client {
    /// Asks, and reads the answer to its end.
    pub async fn ask(&self, ask: &Ask) -> Result<Reply, HarnessError> {
        let mut headers: Vec<_> =
            ask.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        headers.push((DECISION_HEADER, "1"));
        let sent = Instant::now();
        let mut reply = if ask.streams() {
            self.ask_stream(ask, &headers).await?
        } else {
            let answer = self
                .request(Method::POST, ask.endpoint.path(), ask.json().to_string().into(), &headers)
                .await?;
            let mut reply =
                Reply { status: answer.status, headers: answer.headers.clone(), ..Reply::default() };
            reply.body = answer.json();
            let body = reply.body.clone();
            reply.take(&body);
            reply
        };
        reply.took = sent.elapsed();
        let decision = reply.headers.get(DECISION_HEADER).and_then(|value| value.to_str().ok());
        reply.decision = decision.and_then(Decision::parse);
        Ok(reply)
    }

    async fn ask_stream(&self, ask: &Ask, headers: &[(&str, &str)]) -> Result<Reply, HarnessError> {
        let mut stream = self.stream(ask.endpoint.path(), &ask.json(), headers).await?;
        let mut reply = Reply { status: stream.status, headers: stream.headers.clone(), ..Reply::default() };
        let mut last = Duration::ZERO;
        while let Some(Event { data, after }) = stream.next().await? {
            if data == "[DONE]" {
                reply.done = true;
            } else {
                let before = reply.text.len();
                reply.take(&serde_json::from_str(&data).unwrap_or_default());
                if reply.text.len() > before {
                    reply.first_token.get_or_insert(after);
                    last = after;
                }
            }
            reply.events.push(data);
        }
        if !stream.remainder().is_empty() {
            reply.body = serde_json::from_slice(stream.remainder()).unwrap_or_default();
            let body = reply.body.clone();
            reply.take(&body);
        }
        let steps = reply.completion_tokens.and_then(|tokens| u32::try_from(tokens).ok()).unwrap_or(0);
        if let (Some(first), 2..) = (reply.first_token, steps) {
            reply.per_token = Some(last.saturating_sub(first) / (steps - 1));
        }
        Ok(reply)
    }
}

impl Reply {
    /// Takes in a whole body or one chunk.
    fn take(&mut self, json: &Value) {
        let choice = &json["choices"][0];
        for text in [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]] {
            self.text.push_str(text.as_str().unwrap_or_default());
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_owned());
        }
        let usage = &json["usage"];
        self.prompt_tokens = usage["prompt_tokens"].as_u64().or(self.prompt_tokens);
        self.completion_tokens = usage["completion_tokens"].as_u64().or(self.completion_tokens);
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        self.cached_tokens = cached.unwrap_or(self.cached_tokens);
        if !json["error"].is_null() {
            self.error = Some(json["error"].clone());
        }
    }

    /// A member of the error; `null` when there is none.
    pub fn error_member(&self, name: &str) -> &Value {
        self.error.as_ref().map_or(&Value::Null, |error| &error[name])
    }
}
