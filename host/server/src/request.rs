//! A client's request, as far as routing needs to know it. The prompt stays unparsed.

use std::borrow::Cow;

use hyper::HeaderMap;
use sha2::{Digest, Sha256};

use crate::http::error::ApiError;
use crate::http::members::Members;

/// A generation endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

impl Endpoint {
    /// The path, on this host and on engines.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }

    /// The member that holds the prompt.
    fn prompt_member(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Completions => "prompt",
        }
    }
}

/// What a client must not set, since it steers engines or names what only the host knows: KV handles (an engine
/// given a bad one hangs or exits), cache salts, request ids (push transfers match by them).
const STRIPPED: [&str; 6] = [
    "kv_transfer_params",
    "ec_transfer_params",
    "cache_salt",
    "request_id",
    "conversation_id",
    "conversation",
];

/// Output tokens assumed when neither the client nor the pool says a limit.
const OUTPUT_TOKENS_UNLESS_SAID: u32 = 1_024;

/// The longest conversation id taken, in bytes: it is kept in memory per session.
const CONVERSATION_BYTES_AT_MOST: usize = 256;

/// A request, read.
#[derive(Debug)]
pub struct ClientRequest<'a> {
    /// Where it came in.
    pub endpoint: Endpoint,
    /// The body's members.
    pub members: Members<'a>,
    /// Served model name.
    pub model: String,
    /// Whether the client wants a stream.
    pub streams: bool,
    /// The client's limit, or an assumption.
    pub max_output_tokens: u32,
    /// The conversation this continues, as the client names it.
    pub conversation: Option<String>,
    /// Why one request cannot be split over prefill and decode, if it cannot.
    pub unsplittable: Option<&'static str>,
}

impl<'a> ClientRequest<'a> {
    /// Reads and checks a body. Errors are the client's, in OpenAI's shape.
    pub fn parse(endpoint: Endpoint, headers: &HeaderMap, body: &'a [u8]) -> Result<Self, ApiError> {
        let members = Members::parse(body).map_err(|error| {
            ApiError::bad_request(None, "invalid_json", format!("the body is not a JSON object: {error}"))
        })?;
        let model: String = required(&members, "model")?;
        if members.get(endpoint.prompt_member()).is_none() {
            return Err(missing(endpoint.prompt_member()));
        }
        check_prompt(endpoint, &members)?;
        let streams = optional::<bool>(&members, "stream")?.unwrap_or(false);
        let limit = match optional::<u32>(&members, "max_completion_tokens")? {
            Some(limit) => Some(limit),
            None => optional::<u32>(&members, "max_tokens")?,
        };
        let conversation = conversation(&members, headers)?;
        let unsplittable = unsplittable(&members)?;
        Ok(Self {
            endpoint,
            members,
            model,
            streams,
            max_output_tokens: limit.unwrap_or(OUTPUT_TOKENS_UNLESS_SAID),
            conversation,
            unsplittable,
        })
    }

    /// The prompt's text as it stands in the JSON, without the closing bracket or quote, so that a prompt that
    /// goes on where another ended begins with the same bytes.
    pub fn prompt_text(&self) -> &'a [u8] {
        let text = self.members.get(self.endpoint.prompt_member()).map_or("", |value| value.get());
        let text = text.as_bytes();
        text.get(..text.len().saturating_sub(1)).unwrap_or_default()
    }

    /// The body for one worker that does it all, or for decode: as the client sent it, less what is stripped,
    /// with this KV handle (raw JSON) if there is one.
    pub fn body(&self, kv_transfer_params: Option<&str>) -> Vec<u8> {
        match kv_transfer_params {
            Some(params) => self.members.write(&STRIPPED, &[("kv_transfer_params", params)]),
            None => self.members.write(&STRIPPED, &[]),
        }
    }

    /// The body for prefill: one token, unstreamed, since a streamed prefill leg returns no handle and strands
    /// its blocks.
    pub fn prefill_body(&self) -> Vec<u8> {
        let mut dropped = STRIPPED.to_vec();
        dropped.extend(["stream_options", "min_tokens"]);
        let mut set = vec![
            ("max_tokens", "1"),
            ("stream", "false"),
            ("kv_transfer_params", r#"{"do_remote_decode":true,"do_remote_prefill":false}"#),
        ];
        if self.members.has("max_completion_tokens") {
            set.push(("max_completion_tokens", "1"));
        }
        self.members.write(&dropped, &set)
    }
}

/// Who pays, as far as this version knows: callers with one API key are one tenant. Only a digest is kept.
pub fn tenant(headers: &HeaderMap) -> Cow<'static, str> {
    match headers.get(hyper::header::AUTHORIZATION) {
        None => Cow::Borrowed("anonymous"),
        Some(key) => {
            let digest = Sha256::digest(key.as_bytes());
            Cow::Owned(digest[..16].iter().fold(String::from("key-"), |mut out, byte| {
                use std::fmt::Write;
                let _ = write!(out, "{byte:02x}");
                out
            }))
        }
    }
}

fn check_prompt(endpoint: Endpoint, members: &Members<'_>) -> Result<(), ApiError> {
    let name = endpoint.prompt_member();
    let first = members.get(name).and_then(|value| value.get().bytes().next());
    match (endpoint, first) {
        (Endpoint::Chat, Some(b'[')) | (Endpoint::Completions, Some(b'[' | b'"')) => Ok(()),
        (Endpoint::Chat, _) => Err(wrong_type(name, "an array of messages")),
        (Endpoint::Completions, _) => Err(wrong_type(name, "a string or an array")),
    }
}

fn conversation(members: &Members<'_>, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    for name in ["conversation_id", "conversation"] {
        if let Some(value) = members.get(name) {
            // OpenAI's own `conversation` may be an object with an id.
            let id = serde_json::from_str::<String>(value.get()).or_else(|_| {
                #[derive(serde::Deserialize)]
                struct Conversation {
                    id: String,
                }
                serde_json::from_str::<Conversation>(value.get()).map(|conversation| conversation.id)
            });
            let id = id.map_err(|_| wrong_type(name, "a string"))?;
            return bounded_conversation(name, id).map(Some);
        }
    }
    for name in ["x-conversation-id", "x-session-id"] {
        if let Some(value) = headers.get(name) {
            let id = value.to_str().map_err(|_| wrong_type(name, "visible ASCII"))?;
            return bounded_conversation(name, id.to_owned()).map(Some);
        }
    }
    Ok(None)
}

fn bounded_conversation(name: &str, id: String) -> Result<String, ApiError> {
    if id.is_empty() || id.len() > CONVERSATION_BYTES_AT_MOST {
        let message = format!("{name} must have 1 to {CONVERSATION_BYTES_AT_MOST} bytes, not {}", id.len());
        return Err(ApiError::bad_request(Some(name), "invalid_value", message));
    }
    Ok(id)
}

/// What vLLM cannot split: several sequences of one prompt, and logits of the prompt itself.
fn unsplittable(members: &Members<'_>) -> Result<Option<&'static str>, ApiError> {
    for name in ["n", "best_of"] {
        if optional::<u32>(members, name)?.is_some_and(|count| count > 1) {
            return Ok(Some(name));
        }
    }
    if optional::<bool>(members, "echo")?.unwrap_or(false) {
        return Ok(Some("echo"));
    }
    if members.get("prompt_logprobs").is_some() {
        return Ok(Some("prompt_logprobs"));
    }
    // Several prompts in one request: `["a", "b"]` or `[[1], [2]]`, but not the one prompt `[1, 2]`.
    if let Some(prompt) = members.get("prompt") {
        let rest = prompt.get().trim_start_matches('[').len();
        let inner = prompt.get()[prompt.get().len() - rest..].trim_start();
        let nested = prompt.get().starts_with('[')
            && (inner.starts_with('"') || prompt.get()[1..].trim_start().starts_with('['));
        if nested {
            return Ok(Some("prompt"));
        }
    }
    Ok(None)
}

fn required<'a, T: serde::Deserialize<'a>>(members: &Members<'a>, name: &'static str) -> Result<T, ApiError> {
    optional(members, name)?.ok_or_else(|| missing(name))
}

fn optional<'a, T: serde::Deserialize<'a>>(
    members: &Members<'a>,
    name: &'static str,
) -> Result<Option<T>, ApiError> {
    members.read(name).map_err(|error| {
        // serde's position is within the member's own text and would mislead.
        let message = error.to_string();
        let what = message.split(" at line ").next().unwrap_or_default();
        ApiError::bad_request(Some(name), "invalid_type", format!("{name}: {what}"))
    })
}

fn missing(name: &str) -> ApiError {
    ApiError::bad_request(Some(name), "missing_required_parameter", format!("the member {name:?} is missing"))
}

fn wrong_type(name: &str, wanted: &str) -> ApiError {
    ApiError::bad_request(Some(name), "invalid_type", format!("{name} must be {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(endpoint: Endpoint, body: &str) -> Result<ClientRequest<'_>, ApiError> {
        ClientRequest::parse(endpoint, &HeaderMap::new(), body.as_bytes())
    }

    fn chat(extra: &str) -> String {
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{extra}}}"#)
    }

    #[test]
    fn bad_requests_name_the_member() {
        for (endpoint, body, param, code) in [
            (Endpoint::Chat, "not json", None, "invalid_json"),
            (Endpoint::Chat, "[1]", None, "invalid_json"),
            (Endpoint::Chat, "{}", Some("model"), "missing_required_parameter"),
            (Endpoint::Chat, r#"{"model":1,"messages":[]}"#, Some("model"), "invalid_type"),
            (Endpoint::Chat, r#"{"model":"m"}"#, Some("messages"), "missing_required_parameter"),
            (
                Endpoint::Chat,
                r#"{"model":"m","messages":null}"#,
                Some("messages"),
                "missing_required_parameter",
            ),
            (Endpoint::Chat, r#"{"model":"m","messages":"hi"}"#, Some("messages"), "invalid_type"),
            (Endpoint::Completions, r#"{"model":"m","prompt":{}}"#, Some("prompt"), "invalid_type"),
            (
                Endpoint::Completions,
                r#"{"model":"m","prompt":"x","stream":1}"#,
                Some("stream"),
                "invalid_type",
            ),
            (
                Endpoint::Completions,
                r#"{"model":"m","prompt":"x","max_tokens":-1}"#,
                Some("max_tokens"),
                "invalid_type",
            ),
            (
                Endpoint::Completions,
                r#"{"model":"m","prompt":"x","conversation_id":7}"#,
                Some("conversation_id"),
                "invalid_type",
            ),
            (
                Endpoint::Completions,
                r#"{"model":"m","prompt":"x","conversation_id":""}"#,
                Some("conversation_id"),
                "invalid_value",
            ),
        ] {
            let error = parse(endpoint, body).expect_err(body);
            assert_eq!(
                (error.status.as_u16(), error.param.as_deref(), error.code),
                (400, param, code),
                "{body}"
            );
        }
    }

    #[test]
    fn prefill_asks_for_one_unstreamed_token() {
        let body = chat(
            r#","stream":true,"stream_options":{"include_usage":true},"min_tokens":5,"max_tokens":64,"temperature":0"#,
        );
        let request = parse(Endpoint::Chat, &body).expect("valid");
        let prefill: serde_json::Value = serde_json::from_slice(&request.prefill_body()).expect("valid");
        assert_eq!(
            prefill,
            serde_json::json!({
                "model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0,
                "max_tokens": 1, "stream": false,
                "kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false},
            })
        );
        let body = chat(r#","max_completion_tokens":64"#);
        let request = parse(Endpoint::Chat, &body).expect("valid");
        let prefill: serde_json::Value = serde_json::from_slice(&request.prefill_body()).expect("valid");
        assert_eq!((&prefill["max_tokens"], &prefill["max_completion_tokens"]), (&1.into(), &1.into()));
    }

    #[test]
    fn what_clients_must_not_set_is_stripped() {
        let members: String = STRIPPED.iter().map(|name| format!(r#","{name}":"x""#)).collect();
        let body = chat(&members);
        let request = parse(Endpoint::Chat, &body).expect("valid");
        for sent in [request.body(None), request.prefill_body(), request.body(Some("{\"ours\":1}"))] {
            let sent = String::from_utf8(sent).expect("UTF-8");
            assert!(!sent.contains(r#":"x""#), "{sent}");
        }
        assert!(
            String::from_utf8(request.body(Some("{\"ours\":1}")))
                .expect("UTF-8")
                .contains(r#""kv_transfer_params":{"ours":1}"#)
        );
    }

    #[test]
    fn what_cannot_be_split_is_known() {
        for (extra, expected) in [
            ("", None),
            (r#","n":1"#, None),
            (r#","n":2"#, Some("n")),
            (r#","best_of":3"#, Some("best_of")),
            (r#","echo":true"#, Some("echo")),
            (r#","echo":false"#, None),
            (r#","prompt_logprobs":0"#, Some("prompt_logprobs")),
            (r#","prompt_logprobs":null"#, None),
            (r#","prompt":["a","b"]"#, Some("prompt")),
            (r#","prompt":[[1,2],[3]]"#, Some("prompt")),
            (r#","prompt":[ 1, 2 ]"#, None),
            (r##","prompt":"[[""##, None),
        ] {
            let body = format!(r#"{{"model":"m","prompt":"x"{extra}}}"#);
            let request = parse(Endpoint::Completions, &body).expect("valid");
            assert_eq!(request.unsplittable, expected, "{extra}");
        }
    }

    #[test]
    fn conversations_come_from_body_then_header() {
        let mut headers = HeaderMap::new();
        headers.insert("x-session-id", "from-header".parse().expect("valid"));
        for (extra, expected) in [
            ("", "from-header"),
            (r#","conversation_id":"c1""#, "c1"),
            (r#","conversation":"c2""#, "c2"),
            (r#","conversation":{"id":"c3"}"#, "c3"),
        ] {
            let body = chat(extra);
            let request = ClientRequest::parse(Endpoint::Chat, &headers, body.as_bytes()).expect("valid");
            assert_eq!(request.conversation.as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_longer_history_begins_with_the_shorter_one() {
        let first = chat("");
        let second = r#"{"model":"m","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}"#;
        let first = parse(Endpoint::Chat, &first).expect("valid");
        let second = parse(Endpoint::Chat, second).expect("valid");
        assert!(second.prompt_text().starts_with(first.prompt_text()));
    }

    #[test]
    fn tenants_are_keys_and_keys_are_not_kept() {
        let mut headers = HeaderMap::new();
        assert_eq!(tenant(&headers), "anonymous");
        headers.insert("authorization", "Bearer secret".parse().expect("valid"));
        let one = tenant(&headers).into_owned();
        assert!(one.starts_with("key-") && !one.contains("secret"));
        headers.insert("authorization", "Bearer other".parse().expect("valid"));
        assert_ne!(one, tenant(&headers));
    }
}
