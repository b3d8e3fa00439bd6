//! Streams that the host makes of whole answers, for clients that asked for a stream where the engine was not asked for
//! one: in vLLM's chunks, with the same text, ends and counts as the answer has.

use bytes::Bytes;

use crate::http::members::Members;
use crate::request::{ClientRequest, Endpoint};

/// Members of an answer that every chunk has.
const OF_EVERY_CHUNK: [&str; 3] = ["id", "created", "model"];

/// Where whole answers have what chunks have in a form of their own, or in another place.
const NOT_OF_DELTAS: [&str; 4] = ["role", "content", "reasoning", "tool_calls"];

/// What a client asks of its stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// A chunk of usage at the end.
    pub include_usage: bool,
    /// Usage in each chunk.
    pub continuous_usage: bool,
}

impl StreamOptions {
    /// Reads `stream_options`; what is none asks for nothing.
    pub fn of(request: &ClientRequest<'_>) -> Self {
        #[derive(serde::Deserialize)]
        struct Written {
            include_usage: Option<bool>,
            continuous_usage_stats: Option<bool>,
        }
        let written = request.members.read::<Written>("stream_options").ok().flatten();
        let include_usage = written.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
        let continuous = written.and_then(|options| options.continuous_usage_stats).unwrap_or(false);
        Self { include_usage, continuous_usage: include_usage && continuous }
    }
}

/// The events of a whole answer, `[DONE]` included. The answer is one that was checked: an object with choices; what is
/// missing in it is missing in its chunks.
pub fn of(answer: &[u8], endpoint: Endpoint, options: StreamOptions) -> Bytes {
    let answer = Members::parse(answer).unwrap_or_default();
    let choices: Vec<&serde_json::value::RawValue> =
        answer.read("choices").ok().flatten().unwrap_or_default();
    let mut events = Events::of(&answer, endpoint, options);
    for choice in choices {
        let choice = Members::parse(choice.get().as_bytes()).unwrap_or_default();
        match endpoint {
            Endpoint::Chat => chat(&mut events, &choice),
            Endpoint::Completions => completion(&mut events, &choice),
        }
    }
    events.end()
}

/// The events so far.
struct Events<'a> {
    answer: &'a Members<'a>,
    options: StreamOptions,
    /// Every chunk's opening, up to its choices.
    head: String,
    /// `usage` as streams have it, without what is null.
    usage: Option<String>,
    out: String,
}

impl<'a> Events<'a> {
    fn of(answer: &'a Members<'a>, endpoint: Endpoint, options: StreamOptions) -> Self {
        let object = match endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        let [id, created, model] = OF_EVERY_CHUNK.map(|name| raw(answer, name));
        let head =
            format!(r#"{{"id":{id},"object":"{object}","created":{created},"model":{model},"choices":["#);
        let usage = answer.get("usage").and_then(|usage| Members::parse(usage.get().as_bytes()).ok());
        let usage = usage.map(|usage| {
            let nulls: Vec<_> = usage.names().filter(|name| usage.get(name).is_none()).collect();
            String::from_utf8(usage.write(&nulls, &[])).unwrap_or_default()
        });
        Self { answer, options, head, usage, out: String::new() }
    }

    /// One event; `more` are members behind its choices, each after a comma.
    fn push(&mut self, choice: &str, usage: Option<&str>, more: &str) {
        let usage = usage.map(|usage| format!(r#","usage":{usage}"#)).unwrap_or_default();
        self.out.extend(["data: ", &self.head, choice, "]", &usage, more, "}\n\n"]);
    }

    /// A chunk of a choice.
    fn chunk(&mut self, choice: &str, more: &str) {
        let usage = self.usage.clone().filter(|_| self.options.continuous_usage);
        self.push(choice, usage.as_deref(), more);
    }

    /// The chunk in which a choice ends.
    fn last_chunk(&mut self, choice: &str) {
        let fingerprint =
            if self.options.include_usage { String::new() } else { self.also("system_fingerprint") };
        self.chunk(choice, &fingerprint);
    }

    /// A member of the answer as it is written behind others; nothing if it is null.
    fn also(&self, name: &str) -> String {
        self.answer.get(name).map(|value| format!(r#","{name}":{}"#, value.get())).unwrap_or_default()
    }

    fn end(mut self) -> Bytes {
        if let Some(usage) = self.usage.take().filter(|_| self.options.include_usage) {
            let more = self.also("system_fingerprint") + &self.also("metrics");
            self.push("", Some(&usage), &more);
        }
        self.out.push_str("data: [DONE]\n\n");
        self.out.into()
    }
}

/// The JSON of a member; `null` where there is none.
fn raw<'a>(members: &Members<'a>, name: &str) -> &'a str {
    members.get(name).map_or("null", |value| value.get())
}

/// A chat opens with its role; reasoning, words and calls of tools follow, and an end without words.
fn chat(events: &mut Events<'_>, choice: &Members<'_>) {
    let index = raw(choice, "index");
    let message = choice.get("message").and_then(|message| Members::parse(message.get().as_bytes()).ok());
    let message = message.unwrap_or_default();
    let role = format!(
        r#"{{"index":{index},"delta":{{"role":{},"content":""}},"logprobs":null,"finish_reason":null}}"#,
        message.get("role").map_or("\"assistant\"", |role| role.get())
    );
    let of_prompt = ["prompt_token_ids", "prompt_text"].map(|name| {
        let written = || format!(r#","{name}":{}"#, raw(events.answer, name));
        if events.answer.has(name) { written() } else { String::new() }
    });
    let usage =
        events.usage.as_ref().filter(|_| events.options.continuous_usage).map(|usage| before_words(usage));
    events.push(&role, usage.as_deref(), &of_prompt.concat());
    let (mut logprobs, mut ids) = (raw(choice, "logprobs"), raw(choice, "token_ids"));
    let deltas = deltas(&message);
    for delta in &deltas {
        let chunk = format!(
            r#"{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":null,"token_ids":{ids}}}"#
        );
        events.chunk(&chunk, "");
        // Of all tokens at once, with the first words.
        (logprobs, ids) = ("null", "null");
    }
    let last = format!(
        r#"{{"index":{index},"delta":{{"content":""}},"logprobs":{logprobs},"finish_reason":{},"stop_reason":{},"token_ids":{ids}}}"#,
        raw(choice, "finish_reason"),
        raw(choice, "stop_reason"),
    );
    events.last_chunk(&last);
}

/// What a message says, in the order in which engines say it.
fn deltas(message: &Members<'_>) -> Vec<String> {
    let mut deltas = Vec::new();
    for name in ["reasoning", "content"] {
        let said = message.get(name).filter(|text| text.get() != "\"\"");
        deltas.extend(said.map(|text| format!(r#"{{"{name}":{}}}"#, text.get())));
    }
    let calls: Vec<&serde_json::value::RawValue> =
        message.read("tool_calls").ok().flatten().unwrap_or_default();
    let calls: Vec<_> = calls.iter().enumerate().map(|(index, call)| tool_call(index, call.get())).collect();
    if !calls.is_empty() {
        deltas.push(format!(r#"{{"tool_calls":[{}]}}"#, calls.join(",")));
    }
    // Whatever else a message has, such as a refusal.
    let others = message.names().filter(|name| !NOT_OF_DELTAS.contains(name));
    let others = others.filter_map(|name| Some((name, message.get(name)?)));
    deltas
        .extend(others.map(|(name, value)| format!("{{{}:{}}}", serde_json::Value::from(name), value.get())));
    deltas
}

/// Calls of tools have a number in streams.
fn tool_call(index: usize, call: &str) -> String {
    let index = index.to_string();
    let numbered = Members::parse(call.as_bytes()).map(|call| call.write(&[], &[("index", &index)]));
    numbered.ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| call.to_owned())
}

/// Usage when nothing was said yet.
fn before_words(usage: &str) -> String {
    let usage = Members::parse(usage.as_bytes()).unwrap_or_default();
    let set = [("total_tokens", raw(&usage, "prompt_tokens")), ("completion_tokens", "0")];
    String::from_utf8(usage.write(&[], &set)).unwrap_or_default()
}

/// A completion is its text, and an end without text.
fn completion(events: &mut Events<'_>, choice: &Members<'_>) {
    let index = raw(choice, "index");
    let text = format!(
        r#"{{"index":{index},"text":{},"logprobs":{},"finish_reason":null,"stop_reason":null,"prompt_token_ids":{},"token_ids":{}}}"#,
        choice.get("text").map_or("\"\"", |text| text.get()),
        raw(choice, "logprobs"),
        raw(choice, "prompt_token_ids"),
        raw(choice, "token_ids"),
    );
    events.chunk(&text, "");
    let last = format!(
        r#"{{"index":{index},"text":"","logprobs":null,"finish_reason":{},"stop_reason":{},"prompt_token_ids":null,"token_ids":null}}"#,
        raw(choice, "finish_reason"),
        raw(choice, "stop_reason"),
    );
    events.last_chunk(&last);
}

#[cfg(test)]
#[path = "made_stream_cases.rs"]
mod tests;
