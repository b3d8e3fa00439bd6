//! A client's request, as far as routing needs to know it. The prompt stays unparsed.

use bytes::Bytes;
use hyper::HeaderMap;
use serde_json::value::RawValue;
use sluice_core::history::chain::{Chain, NoChain};
use sluice_core::history::scope::Scope;

use crate::extra_args;
use crate::http::error::ApiError;
use crate::http::members::Members;
use crate::http::segments::Segments;
use crate::identity::conversation;
use crate::off_loop;
use crate::output_limit::{OutputLimit, Zero};
use crate::prompt_ids::may_bring_media;
use crate::splitting::unsplittable;

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
/// given a bad one hangs or exits), cache salts, request ids (push transfers match by them), addresses and ranks that
/// engines of other makes would go by. `extra_body` is what clients' libraries unfold: on the wire it means nothing
/// good.
pub(crate) const STRIPPED: [&str; 12] = [
    "kv_transfer_params",
    "ec_transfer_params",
    "cache_salt",
    "request_id",
    "conversation_id",
    "conversation",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "data_parallel_rank",
    "routed_dp_rank",
    "extra_body",
];

/// Output tokens assumed when neither the client nor the pool says a limit.
pub(crate) const OUTPUT_TOKENS_UNLESS_SAID: u32 = 1_024;

/// What has an engine tell token ids.
const RETURN_TOKEN_IDS: (&str, &str) = ("return_token_ids", "true");

/// What the host asks of a leg beyond what the client asks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asks {
    /// Token ids of the prompt and the answer.
    pub token_ids: bool,
    /// A whole answer, where the client asks for a stream.
    pub unstreamed: bool,
}

/// A request, read.
#[derive(Debug)]
pub struct ClientRequest<'a> {
    /// Where it came in.
    pub endpoint: Endpoint,
    /// The body's members.
    pub members: Members<'a>,
    /// The body they are slices of.
    text: &'a Bytes,
    /// Served model name.
    pub model: String,
    /// Whether the client wants a stream.
    pub streams: bool,
    /// The client's limit, or an assumption.
    pub max_output_tokens: u32,
    /// The client's limit, if it says one.
    pub output_limit: Option<OutputLimit>,
    /// The conversation this continues, as the client names it.
    pub conversation: Option<String>,
    /// Why one request cannot be split over prefill and decode, if it cannot.
    pub unsplittable: Option<&'static str>,
    /// As engines read it: lower is earlier.
    pub priority: Option<i32>,
    /// Members, as raw JSON, that the host sets on every leg, whatever the client wrote.
    set_by_host: Vec<(&'static str, String)>,
}

self_cell::self_cell! {
    /// A request with the body that it is slices of, so that it can be read on one thread and used on another.
    pub struct OwnedRequest {
        owner: Bytes,
        #[covariant]
        dependent: ClientRequest,
    }

    impl {Debug}
}

impl OwnedRequest {
    /// As [`ClientRequest::parse`]; a long body is read off the event loop.
    pub async fn read(endpoint: Endpoint, headers: &HeaderMap, body: Bytes) -> Result<Self, ApiError> {
        let bytes = body.len();
        if off_loop::is_short(bytes) {
            // Most are, and need no copy of their headers.
            return Self::try_new(body, |body| ClientRequest::parse(endpoint, headers, body));
        }
        let headers = headers.clone();
        let read = move || Self::try_new(body, |body| ClientRequest::parse(endpoint, &headers, body));
        off_loop::run(bytes, read).await?
    }
}

impl<'a> ClientRequest<'a> {
    /// Reads and checks a body. Errors are the client's, in OpenAI's shape.
    pub fn parse(endpoint: Endpoint, headers: &HeaderMap, body: &'a Bytes) -> Result<Self, ApiError> {
        let members = Members::parse(body).map_err(|error| {
            ApiError::bad_request(None, "invalid_json", format!("the body is not a JSON object: {error}"))
        })?;
        let model: String = required(&members, "model")?;
        if members.get(endpoint.prompt_member()).is_none() {
            return Err(missing(endpoint.prompt_member()));
        }
        check_prompt(endpoint, &members)?;
        let streams = optional::<bool>(&members, "stream")?.unwrap_or(false);
        extra_args::check(&members)?;
        // A completion may be its prompt's echo alone, to score it.
        let echoes = endpoint == Endpoint::Completions && optional(&members, "echo")?.unwrap_or(false);
        let zero = if echoes { Zero::Taken } else { Zero::Refused };
        let output_limit = OutputLimit::read(&members, &["max_completion_tokens", "max_tokens"], zero)?;
        let priority = priority(&members)?;
        let conversation = conversation(&members, headers)?;
        let unsplittable = unsplittable(&members)?;
        Ok(Self {
            endpoint,
            members,
            text: body,
            model,
            streams,
            max_output_tokens: output_limit.map_or(OUTPUT_TOKENS_UNLESS_SAID, |limit| limit.tokens),
            output_limit,
            conversation,
            unsplittable,
            priority,
            set_by_host: Vec::new(),
        })
    }

    /// The prompt's text as it stands in the JSON, without the closing bracket or quote, so that a prompt that
    /// goes on where another ended begins with the same bytes.
    pub fn prompt_text(&self) -> &'a [u8] {
        let text = self.members.get(self.endpoint.prompt_member()).map_or("", |value| value.get());
        let text = text.as_bytes();
        text.get(..text.len().saturating_sub(1)).unwrap_or_default()
    }

    /// Digests of the history that it continues. About a nanosecond a byte.
    ///
    /// # Errors
    /// See [`NoChain`]; a list of messages that is none has no history.
    pub fn history(&self, scope: &Scope) -> Result<Chain, NoChain> {
        let chain = match self.endpoint {
            Endpoint::Completions => Chain::of_text(scope, self.prompt_text()),
            Endpoint::Chat => {
                let messages = self.members.read::<Vec<&RawValue>>(self.endpoint.prompt_member());
                let messages = messages.ok().flatten().unwrap_or_default();
                Chain::of_messages(scope, messages.into_iter().map(|message| message.get().as_bytes()))
            }
        };
        chain.map(|chain| if may_bring_media(self) { chain.beside_media() } else { chain })
    }

    /// The body for one worker that does it all, or for decode: as the client sent it, less what is stripped,
    /// with this KV handle (raw JSON) if there is one.
    pub fn body(&self, kv_transfer_params: Option<&str>) -> Segments {
        self.body_asking(kv_transfer_params, Asks::default())
    }

    /// The same, asking for more than the client does.
    pub fn body_asking(&self, kv_transfer_params: Option<&str>, asks: Asks) -> Segments {
        let mut set = self.host_members();
        set.extend(kv_transfer_params.map(|params| ("kv_transfer_params", params)));
        set.extend((asks.token_ids && self.wants_token_ids() == Some(false)).then_some(RETURN_TOKEN_IDS));
        if !asks.unstreamed {
            return self.members.splice(self.text, &STRIPPED, &set);
        }
        let mut dropped = STRIPPED.to_vec();
        dropped.push("stream_options");
        set.push(("stream", "false"));
        self.members.splice(self.text, &dropped, &set)
    }

    /// Of its members these alone, and those in `set` (raw JSON).
    pub fn only(&self, names: &[&str], set: &[(&str, &str)]) -> Segments {
        let dropped: Vec<_> = self.members.names().filter(|name| !names.contains(name)).collect();
        self.members.splice(self.text, &dropped, set)
    }

    /// The body for prefill, with what is asked of its KV (raw JSON): one token, unstreamed, since a streamed prefill leg
    /// returns no handle and strands its blocks.
    pub fn prefill_body(&self, kv_transfer_params: &str) -> Segments {
        self.prefill_body_asking(kv_transfer_params, false)
    }

    /// The same, with the prompt's token ids in its answer if they are asked for, whatever the client says: it never sees this answer.
    pub fn prefill_body_asking(&self, kv_transfer_params: &str, token_ids: bool) -> Segments {
        let mut dropped = STRIPPED.to_vec();
        dropped.extend(["stream_options", "min_tokens"]);
        let mut set = self.host_members();
        set.extend([("max_tokens", "1"), ("stream", "false"), ("kv_transfer_params", kv_transfer_params)]);
        if self.members.has("max_completion_tokens") {
            set.push(("max_completion_tokens", "1"));
        }
        set.extend(token_ids.then_some(RETURN_TOKEN_IDS));
        self.members.splice(self.text, &dropped, &set)
    }
}

impl ClientRequest<'_> {
    /// Sets a member, as raw JSON, on every leg.
    pub fn set_by_host(&mut self, name: &'static str, json: String) {
        self.set_by_host.push((name, json));
    }

    /// Whether the client itself asks for token ids. `None` where that is for its engine to say, which may take `0` for a no, or refuse
    /// it.
    pub fn wants_token_ids(&self) -> Option<bool> {
        match self.members.get(RETURN_TOKEN_IDS.0).map(|asked| asked.get()) {
            None | Some("false") => Some(false),
            Some("true") => Some(true),
            Some(_) => None,
        }
    }

    /// Whether words of the client's end its answer.
    pub fn has_stop_words(&self) -> bool {
        self.members.get("stop").is_some_and(|stop| !matches!(stop.get(), "null" | "[]" | "\"\""))
    }

    /// Output tokens of all answers that the client asks for.
    pub fn output_tokens_at_most(&self) -> Result<u64, ApiError> {
        let answers = |name| Ok::<_, ApiError>(optional::<u32>(&self.members, name)?.unwrap_or(1));
        let answers = answers("n")?.max(answers("best_of")?).max(1);
        Ok(u64::from(self.max_output_tokens) * u64::from(answers))
    }

    fn host_members(&self) -> Vec<(&'static str, &str)> {
        self.set_by_host.iter().map(|(name, json)| (*name, json.as_str())).collect()
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

/// As engines read it: lower is earlier. They take any whole number; beyond 32 bits none is more urgent than another.
pub(crate) fn priority(members: &Members<'_>) -> Result<Option<i32>, ApiError> {
    let written = optional::<i64>(members, "priority")?;
    Ok(written.map(|priority| priority.clamp(i32::MIN.into(), i32::MAX.into()) as i32))
}

pub(crate) fn required<'a, T: serde::Deserialize<'a>>(
    members: &Members<'a>,
    name: &'static str,
) -> Result<T, ApiError> {
    optional(members, name)?.ok_or_else(|| missing(name))
}

pub(crate) fn optional<'a, T: serde::Deserialize<'a>>(
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

pub(crate) fn missing(name: &str) -> ApiError {
    ApiError::bad_request(Some(name), "missing_required_parameter", format!("the member {name:?} is missing"))
}

pub(crate) fn wrong_type(name: &str, wanted: &str) -> ApiError {
    ApiError::bad_request(Some(name), "invalid_type", format!("{name} must be {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::ASKED;

    fn parse(endpoint: Endpoint, body: &str) -> Result<ClientRequest<'static>, ApiError> {
        // Tests may leak what a connection would own.
        let body = Box::leak(Box::new(Bytes::copy_from_slice(body.as_bytes())));
        ClientRequest::parse(endpoint, &HeaderMap::new(), body)
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
                "invalid_value",
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
        let prefill: serde_json::Value =
            serde_json::from_slice(&request.prefill_body(ASKED).joined()).expect("valid");
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
        let prefill: serde_json::Value =
            serde_json::from_slice(&request.prefill_body(ASKED).joined()).expect("valid");
        assert_eq!((&prefill["max_tokens"], &prefill["max_completion_tokens"]), (&1.into(), &1.into()));
    }

    #[test]
    fn what_clients_must_not_set_is_stripped() {
        let members: String = STRIPPED.iter().map(|name| format!(r#","{name}":"x""#)).collect();
        let body = chat(&members);
        let request = parse(Endpoint::Chat, &body).expect("valid");
        for sent in [request.body(None), request.prefill_body(ASKED), request.body(Some("{\"ours\":1}"))] {
            let sent = String::from_utf8(sent.joined()).expect("UTF-8");
            assert!(!sent.contains(r#":"x""#), "{sent}");
        }
        assert!(
            String::from_utf8(request.body(Some("{\"ours\":1}")).joined())
                .expect("UTF-8")
                .contains(r#""kv_transfer_params":{"ours":1}"#)
        );
    }

    #[test]
    fn what_the_host_sets_stands_on_every_leg() {
        let body = chat(r#","cache_salt":"mine","priority":-9"#);
        let mut request = parse(Endpoint::Chat, &body).expect("valid");
        assert_eq!(request.priority, Some(-9));
        request.set_by_host("cache_salt", "\"ours\"".to_owned());
        request.set_by_host("priority", "3".to_owned());
        for sent in [request.body(None), request.prefill_body(ASKED), request.body(Some("{}"))] {
            let sent: serde_json::Value = serde_json::from_slice(&sent.joined()).expect("valid");
            assert_eq!((&sent["cache_salt"], &sent["priority"]), (&"ours".into(), &3.into()), "{sent}");
        }
    }

    #[test]
    fn legs_ask_for_more_than_the_client() {
        let asks = |token_ids, unstreamed| Asks { token_ids, unstreamed };
        for (extra, asks, expected) in [
            ("", asks(true, false), r#","return_token_ids":true"#),
            (r#","return_token_ids":false"#, asks(true, false), r#","return_token_ids":true"#),
            (r#","return_token_ids":null,"n":1"#, asks(true, false), r#","n":1,"return_token_ids":true"#),
            // Its own word stays, where it is not a no.
            (r#","return_token_ids":true,"n":1"#, asks(true, false), r#","return_token_ids":true,"n":1"#),
            (r#","return_token_ids":"no""#, asks(true, false), r#","return_token_ids":"no""#),
            (r#","return_token_ids":0"#, asks(true, false), r#","return_token_ids":0"#),
            (r#","return_token_ids":true"#, asks(false, false), r#","return_token_ids":true"#),
            (
                r#","stream":true,"stream_options":{"include_usage":true}"#,
                asks(false, true),
                r#","stream":false"#,
            ),
            (r#","stream":true"#, asks(true, true), r#","return_token_ids":true,"stream":false"#),
        ] {
            let body = chat(extra);
            let request = parse(Endpoint::Chat, &body).expect("valid");
            let sent = String::from_utf8(request.body_asking(None, asks).joined()).expect("UTF-8");
            assert_eq!(sent, chat(expected), "{extra}");
        }
        for said in ["true", "false", "null", "0", "1", "\"no\"", "[]"] {
            let body = chat(&format!(r#","return_token_ids":{said}"#));
            let request = parse(Endpoint::Chat, &body).expect("valid");
            let asked: serde_json::Value =
                serde_json::from_slice(&request.prefill_body_asking(ASKED, true).joined()).expect("JSON");
            assert_eq!(asked["return_token_ids"], true, "{said}");
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
}
