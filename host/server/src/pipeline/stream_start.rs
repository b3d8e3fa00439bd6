//! The start of an engine's stream. Nothing goes to the client before the engine has shown that it can answer: a
//! failure until then, such as KV blocks that could not be fetched, is answered by another attempt.

use std::borrow::Cow;

use bytes::Bytes;
use http_body_util::BodyExt;
use memchr::memmem::Finder;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::answer::failed;
use crate::http::members::Members;
use crate::http::sse::{self, Splitter};
use crate::upstream::UpstreamBody;

/// Events with a payload held back while none has content. vLLM opens a chat with one, and a response with two.
const HELD_BACK_AT_MOST: usize = 16;

/// Bytes of them: with more than the longest event holds, the stream is passed on.
const HELD_BACK_BYTES_AT_MOST: usize = sse::EVENT_BYTES_AT_MOST;

/// Bytes of keep-alives held back; further ones are dropped, since a client that was not answered yet needs none.
const KEEP_ALIVE_BYTES_AT_MOST: usize = 1_024;

/// A stream that began well.
#[derive(Debug)]
pub(crate) struct Opened {
    pub body: UpstreamBody,
    pub splitter: Splitter,
    /// What came until now, not passed on yet.
    pub events: Vec<Bytes>,
}

/// Why a stream did not begin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unopened {
    Late,
    Broken,
    /// `[DONE]` before any content.
    Empty,
    /// An event that is no JSON object.
    Garbage,
    TooLong,
    /// The engine says that it failed.
    Error(Bytes),
}

/// What an event is to its stream's start.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// An opening without words, which tells nothing yet.
    Opening,
    /// Part of an answer.
    Words,
    /// The engine says that it failed, in this JSON.
    Failure(Bytes),
    /// None of any answer.
    Garbage,
}

/// Reads until the first event that is part of an answer; `look` tells what an event with a payload is.
pub(crate) async fn open(
    mut body: UpstreamBody,
    until: Instant,
    look: impl Fn(&[u8]) -> First,
) -> Result<Opened, Unopened> {
    let (mut splitter, mut start) = (Splitter::default(), Start::default());
    loop {
        let frame = match timeout_at(until, body.frame()).await {
            Err(_) => return Err(Unopened::Late),
            Ok(None | Some(Err(_))) => return Err(Unopened::Broken),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(chunk) = frame.into_data() else { continue };
        let new = splitter.push(chunk).map_err(|_| Unopened::TooLong)?;
        if start.takes(new, &look)? {
            return Ok(Opened { body, splitter, events: start.held_back });
        }
    }
}

/// What came of a stream that has not begun.
#[derive(Debug, Default)]
struct Start {
    held_back: Vec<Bytes>,
    openings: usize,
    opening_bytes: usize,
    keep_alive_bytes: usize,
}

impl Start {
    /// Takes events in; whether the stream has begun.
    fn takes(&mut self, events: Vec<Bytes>, look: impl Fn(&[u8]) -> First) -> Result<bool, Unopened> {
        let mut has_begun = false;
        for event in events {
            if !has_begun {
                if sse::payload(&event).is_none() {
                    self.keep_alive_bytes += event.len();
                    if self.keep_alive_bytes <= KEEP_ALIVE_BYTES_AT_MOST {
                        self.held_back.push(event);
                    }
                    continue;
                }
                if is_done(&event) {
                    return Err(Unopened::Empty);
                }
                self.openings += 1;
                self.opening_bytes += event.len();
                has_begun = match look(&event) {
                    First::Failure(payload) => return Err(Unopened::Error(payload)),
                    First::Garbage => return Err(Unopened::Garbage),
                    First::Words => true,
                    First::Opening => {
                        self.openings > HELD_BACK_AT_MOST || self.opening_bytes > HELD_BACK_BYTES_AT_MOST
                    }
                };
            }
            self.held_back.push(event);
        }
        Ok(has_begun)
    }
}

/// What a chunk of a completion is.
pub(super) fn chunk(event: &[u8]) -> First {
    if tells_failure(event) {
        First::Failure(Bytes::copy_from_slice(sse::payload(event).unwrap_or_default()))
    } else if is_garbage(event) {
        First::Garbage
    } else if is_opening(event) {
        First::Opening
    } else {
        First::Words
    }
}

/// Whether an event is none of any answer. One that is written on several lines is not looked into.
fn is_garbage(event: &[u8]) -> bool {
    let mut payloads = event.split(|byte| *byte == b'\n').filter_map(sse::data);
    match (payloads.next(), payloads.next()) {
        (Some(payload), None) => !payload.is_empty() && Members::parse(payload).is_err(),
        _ => false,
    }
}

pub(super) fn is_done(event: &[u8]) -> bool {
    sse::payload(event) == Some(b"[DONE]")
}

/// Whether a chunk says that the engine failed. The text is looked for first: most chunks are not parsed.
pub(crate) fn tells_failure(event: &[u8]) -> bool {
    thread_local! {
        static FINDER: Finder<'static> = Finder::new("error");
    }
    let lines = || event.split(|byte| *byte == b'\n').filter_map(sse::data);
    FINDER.with(|finder| finder.find(event).is_some())
        && lines().filter_map(|payload| Members::parse(payload).ok()).any(|members| failed(&members))
}

/// Whether an event is none of the answer: a comment, or the chunk that opens a chat with the assistant's role and
/// no words, which vLLM sends before it knows whether there will be any.
fn is_opening(event: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Choice<'a> {
        #[serde(borrow)]
        delta: Option<Delta<'a>>,
        #[serde(borrow, default)]
        finish_reason: Option<Cow<'a, str>>,
    }
    #[derive(Deserialize)]
    struct Delta<'a> {
        #[serde(borrow, default)]
        role: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        content: Option<Cow<'a, str>>,
    }
    let Some(payload) = sse::payload(event) else { return true };
    let Ok(members) = Members::parse(payload) else { return false };
    let Ok(Some(choices)) = members.read::<Vec<Choice<'_>>>("choices") else { return false };
    // A chunk of usage alone has none.
    choices.is_empty()
        || choices.iter().all(|choice| {
            let has_role_alone = choice.delta.as_ref().is_some_and(|delta| {
                delta.role.is_some() && delta.content.as_ref().is_none_or(|text| text.is_empty())
            });
            has_role_alone && choice.finish_reason.is_none()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_found_however_they_are_spelled() {
        for (event, expected) in [
            ("data: {\"error\": {\"message\": \"x\"}}\n\n", true),
            ("data:{ \"error\":{\"message\":\"x\"}}\n\n", true),
            ("event: error\ndata: {\"error\":{}}\n\n", true),
            ("data: {\"object\":\"error\",\"message\":\"x\"}\n\n", true),
            ("data: {\"choices\":[{\"finish_reason\":\"error\"}]}\n\n", true),
            ("data: {\"choices\":[{\"text\":\"an error\",\"finish_reason\":null}]}\n\n", false),
            ("data: {\"error\":null,\"choices\":[]}\n\n", false),
        ] {
            assert_eq!(tells_failure(event.as_bytes()), expected, "{event}");
        }
    }

    #[test]
    fn an_answer_begins_with_its_first_words() {
        const ROLE: &str = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":null}"#;
        for (payloads, expected) in [
            (&[ROLE][..], Ok(false)),
            (&[ROLE, r#"{"choices":[{"delta":{"content":"Hi"},"finish_reason":null}]}"#], Ok(true)),
            (&[r#"{"choices":[{"delta":{"role":"assistant","content":"Hi"}}]}"#], Ok(true)),
            (&[r#"{"choices":[{"delta":{"reasoning_content":"Hm"}}]}"#], Ok(true)),
            (&[ROLE, r#"{"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}"#], Ok(true)),
            (&[r#"{"choices":[{"text":"","finish_reason":null}]}"#], Ok(true)),
            (&["[DONE]"], Err(Unopened::Empty)),
            (&["null"], Err(Unopened::Garbage)),
            (&[ROLE, "<html>"], Err(Unopened::Garbage)),
            (&[ROLE, "[DONE]"], Err(Unopened::Empty)),
            (
                &[ROLE, r#"{"error":{"code":500}}"#],
                Err(Unopened::Error(Bytes::from_static(br#"{"error":{"code":500}}"#))),
            ),
            (&["what is this"], Err(Unopened::Garbage)),
            (&[ROLE, r#"{"choices":[],"usage":{"prompt_tokens":3}}"#], Ok(false)),
            (&[], Ok(false)),
        ] {
            let events: Vec<_> =
                payloads.iter().map(|payload| Bytes::from(format!("data: {payload}\n\n"))).collect();
            assert_eq!(Start::default().takes(events, chunk), expected, "{payloads:?}");
        }
    }

    #[test]
    fn keep_alives_are_no_words_however_many_come() {
        let mut start = Start::default();
        let (ping, named) = (Bytes::from_static(b": ping\n\n"), Bytes::from_static(b"event: ping\n\n"));
        for _ in 0..10_000 {
            assert_eq!(start.takes(vec![ping.clone(), named.clone()], chunk), Ok(false));
        }
        let held: usize = start.held_back.iter().map(Bytes::len).sum();
        assert!((1..=KEEP_ALIVE_BYTES_AT_MOST).contains(&held), "{held}");
        let words = Bytes::from_static(b"data: {\"choices\":[{\"text\":\"a\"}]}\n\n");
        assert_eq!(start.takes(vec![words.clone(), ping.clone()], chunk), Ok(true));
        assert_eq!(start.held_back[start.held_back.len() - 2..], [words, ping]);
    }

    #[test]
    fn openings_are_held_back_within_bounds() {
        let long = Bytes::from(format!("data: {}\n\n", "x".repeat(HELD_BACK_BYTES_AT_MOST / 2)));
        for (event, held_back) in [(Bytes::from_static(b"data: {}\n\n"), HELD_BACK_AT_MOST), (long, 1)] {
            let mut start = Start::default();
            for _ in 0..held_back {
                assert_eq!(start.takes(vec![event.clone()], |_| First::Opening), Ok(false));
            }
            assert_eq!(start.takes(vec![event], |_| First::Opening), Ok(true));
        }
    }
}
