//! From an engine's answer to the client's: whole or as a stream, without what is between host and engine.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Deserialize;
use sluice_core::facts::Finish;
use sluice_core::failure::Failure;

use super::attempt::Failed;
use super::call::Call;
use super::deadline::Deadline;
use super::dispatch;
use super::refusal::{refusal, status_in_error, told};
use super::relay::Relay;
use super::stream_start::{self, Opened, Unopened};
use super::told::{Telling, Told};
use super::turn::{AnswerEnd, Turn};
use crate::fleet::Leg;
use crate::http::body::{ResponseBody, whole_with_place};
use crate::http::error::{Blame, json_response};
use crate::http::members::{Members, Raw};
use crate::http::sse::ENGINE_INTERNAL;
use crate::made_stream;
use crate::off_loop;
use crate::record::Record;
use crate::telemetry::labels::Phase;
use crate::upstream::UpstreamBody;
use crate::usage::PrefillUsage;

/// A decode leg's answer that has begun well: nothing of it went to the client.
pub(super) struct Began {
    /// When its head came, by our clock.
    head_came: Duration,
    body: BegunBody,
}

enum BegunBody {
    Stream(Opened),
    Whole(Bytes),
}

/// Reads a decode leg's answer until its status is known, and a stream's first words.
pub(super) async fn begin(
    call: &Call<'_>,
    leg: &mut Leg,
    response: Response<UpstreamBody>,
    deadline: &Deadline,
) -> Result<Began, Failed> {
    let head_came = call.app.clock.elapsed();
    let (head, body) = response.into_parts();
    if !head.status.is_success() {
        let bytes = dispatch::read(leg, Blame::Decode, body, deadline).await?;
        return Err(refusal(leg, Blame::Decode, &head, &bytes));
    }
    let body = if is_event_stream(&head.headers) {
        let opened = stream_start::open(body, deadline.at, stream_start::chunk).await;
        BegunBody::Stream(opened.map_err(|unopened| did_not_begin(leg, unopened, deadline))?)
    } else {
        BegunBody::Whole(dispatch::read(leg, Blame::Decode, body, deadline).await?)
    };
    Ok(Began { head_came, body })
}

/// Passes on what has begun.
pub(super) async fn pass_on(
    call: &Call<'_>,
    mut turn: Turn,
    Began { head_came, body }: Began,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    turn.phase(Phase::DecodeHead, head_came.saturating_sub(turn.dispatched));
    let bytes = match body {
        BegunBody::Stream(opened) => {
            return Ok(stream(ResponseBody::Right(Relay::new(
                opened,
                turn,
                record.hand_over(),
                call.deadline,
            ))));
        }
        BegunBody::Whole(bytes) => bytes,
    };
    // Engines send whole answers when they are done.
    turn.ended_after(head_came);
    let (prefilled, telling, makes_stream) = (turn.prefilled(), turn.telling.take(), turn.makes_stream);
    let length = bytes.len();
    let work = move || {
        let (bytes, end, told) = told_whole(bytes, telling, prefilled)?;
        let made = makes_stream.map(|(endpoint, options)| made_stream::of(&bytes, endpoint, options));
        Ok((made.unwrap_or(bytes), end, told))
    };
    let (bytes, end, told) = off_loop::run(length, work)
        .await
        .map_err(|undone| dispatch::short(&mut turn.leg, undone.to_string()))?
        .map_err(|(failure, what)| dispatch::no_answer(&mut turn.leg, Blame::Decode, failure, what))?;
    turn.finish(end, told, record);
    let body = whole_with_place(bytes, record.take_place());
    if makes_stream.is_some() {
        return Ok(stream(body));
    }
    let mut response = json_response(StatusCode::OK, Bytes::new());
    *response.body_mut() = body;
    Ok(response)
}

/// Passes a leg's answer on. Its status is known here, and a stream's first words, before anything went to the client.
pub(super) async fn relay(
    call: &Call<'_>,
    mut turn: Turn,
    response: Response<UpstreamBody>,
    deadline: &Deadline,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    let began = begin(call, &mut turn.leg, response, deadline).await?;
    pass_on(call, turn, began, record).await
}

/// A stream that failed before its first words.
pub(crate) fn did_not_begin(leg: &mut Leg, unopened: Unopened, deadline: &Deadline) -> Failed {
    let blame = Blame::Decode;
    match unopened {
        Unopened::Late => dispatch::late(leg, blame, deadline),
        Unopened::Broken => {
            let worker = leg.worker();
            let message = format!(
                "{} worker {:?} broke its stream off before any word",
                worker.role.name(),
                worker.name
            );
            dispatch::fail(leg, blame, Failure::BrokeOff, "worker_broke_off", message)
        }
        Unopened::Empty => {
            dispatch::no_answer(leg, blame, Failure::NoAnswer, "ended its stream before any word")
        }
        Unopened::Garbage => {
            dispatch::no_answer(leg, blame, Failure::NoAnswer, "with an event that is no JSON object")
        }
        Unopened::TooLong => {
            dispatch::no_answer(leg, blame, Failure::NoAnswer, "with an event that is too long")
        }
        Unopened::Error(payload) => {
            let status = status_in_error(&payload).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let error = told(leg.worker(), blame, status, &payload);
            let failure = if status.is_client_error() { Failure::Refused } else { Failure::ErrorInAnswer };
            leg.failed(failure, &error.message);
            Failed { failure, worker: Some(leg.worker().id), error }
        }
    }
}

/// A response of events, each sent as it comes.
pub(crate) fn stream(body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
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

pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    const KIND: &[u8] = b"text/event-stream";
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.as_bytes().get(..KIND.len()));
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case(KIND))
}

/// What something is instead of an answer: what that counts as, and the words for it.
type NoAnswer = (Failure, &'static str);

/// The members of a whole answer, and why it ended. One that is none must not pass for one: the error says what it is
/// instead.
pub(super) fn members(bytes: &[u8]) -> Result<(Members<'_>, Option<Cow<'_, str>>), NoAnswer> {
    let members = Members::parse(bytes).map_err(|_| (Failure::NoAnswer, "with no JSON object in it"))?;
    let reason = finish_reason(&members);
    if tells_failure(&members, reason.as_deref()) {
        return Err((Failure::ErrorInAnswer, "with an error in it"));
    }
    let has_choices = |choices: Raw<'_>| {
        let inside = choices.get().strip_prefix('[').map(str::trim_start);
        inside.is_some_and(|inside| inside.starts_with('{'))
    };
    if !members.get("choices").is_some_and(has_choices) {
        return Err((Failure::NoAnswer, "with no choices in it"));
    }
    Ok((members, reason))
}

/// A whole answer as a client gets it, or what is wrong with it: the way in for tests that make answers up.
pub fn whole_as_passed(bytes: Bytes) -> Result<Bytes, &'static str> {
    finish_whole(bytes, None).map(|(bytes, _)| bytes).map_err(|(_, what)| what)
}

/// As [`finish_whole`], and what the answer tells beside its words.
fn told_whole(
    bytes: Bytes,
    mut telling: Option<Telling>,
    prefilled: Option<PrefillUsage>,
) -> Result<(Bytes, AnswerEnd, Option<Told>), NoAnswer> {
    let bytes = match &mut telling {
        Some(telling) => telling.whole(bytes),
        None => bytes,
    };
    let (bytes, end) = finish_whole(bytes, prefilled)?;
    Ok((bytes, end, telling.map(|telling| telling.end(&end))))
}

/// Takes engine-internal members out of a whole answer, corrects its usage, and reads what its end tells.
fn finish_whole(bytes: Bytes, prefilled: Option<PrefillUsage>) -> Result<(Bytes, AnswerEnd), NoAnswer> {
    let (members, reason) = members(&bytes)?;
    let end = end_of(&members, reason.as_deref());
    let usage = prefilled.and_then(|prefilled| prefilled.usage(&members));
    if usage.is_some() || ENGINE_INTERNAL.iter().any(|name| members.has(name)) {
        let set: Vec<_> = usage.iter().map(|usage| ("usage", usage.as_str())).collect();
        let cleaned = members.write(&ENGINE_INTERNAL, &set);
        return Ok((cleaned.into(), end));
    }
    Ok((bytes, end))
}

/// Whether an answer, or a chunk of a stream, says that the engine failed.
pub(super) fn failed(members: &Members<'_>) -> bool {
    tells_failure(members, finish_reason(members).as_deref())
}

fn tells_failure(members: &Members<'_>, finish_reason: Option<&str>) -> bool {
    let is_error_object = members.get("object").is_some_and(|object| object.get() == "\"error\"");
    members.get("error").is_some() || is_error_object || finish_reason == Some("error")
}

fn finish_reason<'a>(members: &Members<'a>) -> Option<Cow<'a, str>> {
    #[derive(Deserialize)]
    struct Choice<'a> {
        #[serde(borrow, default)]
        finish_reason: Option<Cow<'a, str>>,
    }
    let choices = members.read::<Vec<Choice<'a>>>("choices").ok().flatten().unwrap_or_default();
    choices.into_iter().find_map(|choice| choice.finish_reason)
}

/// Whether an answer was ended by one of the client's stop strings: vLLM names it. One that a token's id ended has a number.
fn was_stopped_by_text(members: &Members<'_>) -> bool {
    #[derive(Deserialize)]
    struct Choice<'a> {
        #[serde(borrow, default)]
        stop_reason: Option<Cow<'a, str>>,
    }
    // A number is no such choice.
    let choices = members.read::<Vec<Choice<'_>>>("choices").ok().flatten().unwrap_or_default();
    choices.iter().any(|choice| choice.stop_reason.is_some())
}

/// Usage and finish of one chunk of a stream.
pub(super) fn answer_end(members: &Members<'_>) -> AnswerEnd {
    end_of(members, finish_reason(members).as_deref())
}

fn end_of(members: &Members<'_>, finish_reason: Option<&str>) -> AnswerEnd {
    #[derive(Deserialize)]
    struct Usage {
        prompt_tokens: u32,
        #[serde(default)]
        completion_tokens: Option<u32>,
    }
    let usage = members.read::<Usage>("usage").ok().flatten();
    AnswerEnd {
        prompt_tokens: usage.as_ref().map(|usage| usage.prompt_tokens),
        output_tokens: usage.and_then(|usage| usage.completion_tokens),
        finish: finish_reason.map(finish),
        by_stop_text: finish_reason.is_some() && was_stopped_by_text(members),
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
        let (bytes, end) = finish_whole(Bytes::from_static(body.as_bytes()), None).expect("an answer");
        assert_eq!(
            bytes,
            r#"{"id":"x","choices":[{"index":0,"text":"hi","finish_reason":"length"}],"usage":{"prompt_tokens":58,"total_tokens":90,"completion_tokens":32}}"#
        );
        let expected = AnswerEnd {
            prompt_tokens: Some(58),
            output_tokens: Some(32),
            finish: Some(Finish::Length),
            by_stop_text: false,
        };
        assert_eq!(end, expected);
    }

    #[test]
    fn a_stop_string_is_told_from_a_stop_token() {
        for (reason, by_text) in
            [("null", false), ("151645", false), (r#""\n\n""#, true), (r#""a\"b""#, true)]
        {
            let body = format!(
                r#"{{"choices":[{{"index":0,"text":"x","finish_reason":"stop","stop_reason":{reason}}}]}}"#
            );
            let (_, end) = finish_whole(body.into(), None).expect("an answer");
            assert_eq!((end.finish, end.by_stop_text), (Some(Finish::Stop), by_text), "{reason}");
        }
    }

    #[test]
    fn what_is_no_answer_does_not_pass_for_one() {
        for body in [
            "",
            "[]",
            "<html>",
            r#"{"id":"x""#,
            "{}",
            r#"{"error":{"message":"x"},"choices":[]}"#,
            r#"{"object":"error","message":"x","choices":[]}"#,
            r#"{"choices":[{"finish_reason":"error"}]}"#,
            r#"{"choices":[]}"#,
            r#"{"choices":[ ]}"#,
            r#"{"choices":{"0":1}}"#,
            r#"{"choices":7,"usage":"x"}"#,
            r#"{"choices":[null]}"#,
            r#"{"choices":null}"#,
        ] {
            assert!(finish_whole(Bytes::from_static(body.as_bytes()), None).is_err(), "{body}");
        }
    }

    #[test]
    fn odd_members_do_no_harm() {
        for body in [r#"{"choices":[{}],"usage":"x"}"#, r#"{"choices":[{"finish_reason":{}}]}"#] {
            let passed = finish_whole(Bytes::from_static(body.as_bytes()), None);
            assert_eq!(passed, Ok((Bytes::from_static(body.as_bytes()), AnswerEnd::default())), "{body}");
        }
    }
}
