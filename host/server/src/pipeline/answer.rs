//! From an engine's answer to the client's: whole or as a stream, without what is between host and engine.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Deserialize;
use sluice_core::facts::Finish;

use super::call::Call;
use super::relay::Relay;
use super::turn::{AnswerEnd, Record, Turn};
use super::{DECISION_HEADER, Failed, dispatch};
use crate::fleet::Worker;
use crate::http::body::{ResponseBody, whole_with_place};
use crate::http::error::{Blame, json_response};
use crate::http::members::Members;
use crate::http::sse::ENGINE_INTERNAL;
use crate::telemetry::metrics::Phase;

/// Passes the decode leg's answer on. Its status is known here, before anything went to the client.
pub(super) async fn relay(
    call: &Call<'_>,
    turn: Turn,
    worker: &Arc<Worker>,
    response: Response<Incoming>,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    turn.phase(Phase::DecodeHead, call.app.clock.elapsed().saturating_sub(turn.dispatched));
    let (head, body) = response.into_parts();
    if !head.status.is_success() {
        let bytes = dispatch::read(call, worker, Blame::Decode, body).await?;
        return Err(dispatch::refusal(worker, Blame::Decode, head.status, &bytes));
    }
    let decision = call.decision_header(&turn.decision, &turn.prefill.name, &worker.name);
    let kind = head.headers.get(CONTENT_TYPE);
    let mut response = if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        stream(Relay::new(body, turn, record.hand_over(), call.deadline))
    } else {
        let bytes = dispatch::read(call, worker, Blame::Decode, body).await?;
        let (bytes, end) = finish_whole(bytes);
        turn.finish(end, record);
        let mut response = json_response(StatusCode::OK, Bytes::new());
        *response.body_mut() = whole_with_place(bytes, record.take_place());
        response
    };
    if let Some(decision) = decision {
        response.headers_mut().insert(HeaderName::from_static(DECISION_HEADER), decision);
    }
    Ok(response)
}

fn stream(relay: Relay) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Right(relay));
    for (name, value) in [
        ("content-type", "text/event-stream; charset=utf-8"),
        // Proxies in between must not hold a stream back.
        ("cache-control", "no-cache"),
        ("x-accel-buffering", "no"),
    ] {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Takes engine-internal members out of a whole answer and reads what its end tells.
fn finish_whole(bytes: Bytes) -> (Bytes, AnswerEnd) {
    let Ok(members) = Members::parse(&bytes) else {
        // Not ours to judge: a 200 that is no JSON object goes to the client as it came.
        return (bytes, AnswerEnd::default());
    };
    let end = answer_end(&members);
    if ENGINE_INTERNAL.iter().any(|name| members.has(name)) {
        let cleaned = members.write(&ENGINE_INTERNAL, &[]);
        return (cleaned.into(), end);
    }
    (bytes, end)
}

/// Usage and finish of a whole answer, or of one chunk of a stream.
pub(super) fn answer_end(members: &Members<'_>) -> AnswerEnd {
    #[derive(Deserialize)]
    struct Usage {
        prompt_tokens: u32,
        #[serde(default)]
        completion_tokens: Option<u32>,
    }
    #[derive(Deserialize)]
    struct Choice<'a> {
        #[serde(borrow, default)]
        finish_reason: Option<std::borrow::Cow<'a, str>>,
    }
    let usage = members.read::<Usage>("usage").ok().flatten();
    let choices = members.read::<Vec<Choice<'_>>>("choices").ok().flatten().unwrap_or_default();
    let finish = choices.iter().find_map(|choice| choice.finish_reason.as_deref()).map(finish);
    AnswerEnd {
        prompt_tokens: usage.as_ref().map(|usage| usage.prompt_tokens),
        output_tokens: usage.and_then(|usage| usage.completion_tokens),
        finish,
    }
}

fn finish(reason: &str) -> Finish {
    match reason {
        "stop" => Finish::Stop,
        "length" => Finish::Length,
        "tool_calls" | "function_call" => Finish::ToolCalls,
        _ => Finish::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_answer_is_cleaned_and_read() {
        let body = r#"{"id":"x","choices":[{"index":0,"text":"hi","finish_reason":"length"}],"usage":{"prompt_tokens":58,"total_tokens":90,"completion_tokens":32},"kv_transfer_params":null,"ec_transfer_params":null}"#;
        let (bytes, end) = finish_whole(Bytes::from_static(body.as_bytes()));
        assert_eq!(
            bytes,
            r#"{"id":"x","choices":[{"index":0,"text":"hi","finish_reason":"length"}],"usage":{"prompt_tokens":58,"total_tokens":90,"completion_tokens":32}}"#
        );
        let expected =
            AnswerEnd { prompt_tokens: Some(58), output_tokens: Some(32), finish: Some(Finish::Length) };
        assert_eq!(end, expected);
    }

    #[test]
    fn odd_answers_do_no_harm() {
        for body in
            ["", "[]", "nonsense", r#"{"choices":7,"usage":"x"}"#, r#"{"choices":[{"finish_reason":{}}]}"#]
        {
            let (bytes, end) = finish_whole(Bytes::from_static(body.as_bytes()));
            assert_eq!((bytes.as_ref(), end), (body.as_bytes(), AnswerEnd::default()), "{body}");
        }
    }
}
