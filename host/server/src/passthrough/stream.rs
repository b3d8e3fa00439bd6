//! A stream of a passed request: event by event as the bytes came, less what is internal, driven by the client's
//! connection. It is whole only if it says so; one that breaks ends in an error event.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::body::{Body, Frame};
use serde_json::json;
use sluice_core::failure::Failure;
use tokio::time::{Instant, Sleep, sleep_until};

use super::outcome::Outcome;
use super::paths::Fate;
use crate::fleet::{Booking, Leg};
use crate::http::error::{ApiError, Blame};
use crate::http::members::Members;
use crate::http::sse::{self, Splitter};
use crate::upstream::UpstreamBody;

/// How long an engine may take to end its stream after its last event. Past it the answer is over all the same, and
/// the connection is closed.
const END_AFTER_LAST: Duration = Duration::from_millis(250);

/// A stream's body towards the client.
pub struct Passing(Option<Box<Running>>);

struct Running {
    upstream: UpstreamBody,
    splitter: Splitter,
    deadline: Pin<Box<Sleep>>,
    progress: Progress,
    booking: Booking,
    leg: Leg,
    outcome: Outcome,
}

impl Passing {
    pub(super) fn new(
        upstream: UpstreamBody,
        fate: Fate,
        booking: Booking,
        leg: Leg,
        outcome: Outcome,
        deadline: Instant,
    ) -> Self {
        Self(Some(Box::new(Running {
            upstream,
            splitter: Splitter::default(),
            deadline: Box::pin(sleep_until(deadline)),
            progress: Progress::of(fate),
            booking,
            leg,
            outcome,
        })))
    }

    /// The engine's stream is over, if only because its last event came.
    fn end(&mut self) -> Option<Result<Frame<Bytes>, Infallible>> {
        let whole = self.0.as_ref()?.progress.is_whole();
        if !whole {
            return self.cut(Failure::BrokeOff, "stream_broken", "broke the stream off");
        }
        let mut running = *self.0.take()?;
        if running.progress.failed {
            running.leg.failed(Failure::ErrorInAnswer, "it sent an error event");
            running.outcome.broke();
        } else {
            running.leg.went_well();
            running.outcome.ok();
        }
        None
    }

    /// Tells the client that the stream broke: half an answer must not pass for a whole one.
    fn cut(
        &mut self,
        failure: Failure,
        code: &'static str,
        what: &str,
    ) -> Option<Result<Frame<Bytes>, Infallible>> {
        let mut running = *self.0.take()?;
        let worker = running.booking.worker();
        let message = format!("worker {:?} {what}; the answer is incomplete", worker.name);
        running.leg.failed(failure, &message);
        running.outcome.broke();
        let error = ApiError::new(StatusCode::BAD_GATEWAY, Blame::Decode, code, message);
        Some(Ok(Frame::data(error_event(&error))))
    }
}

/// An event that clients of each kind of stream take for an error: by its name, its `type`, or its `error`.
fn error_event(error: &ApiError) -> Bytes {
    let mut body: serde_json::Value = serde_json::from_str(&error.json()).unwrap_or_default();
    body["type"] = json!("error");
    body["code"] = json!(error.code);
    body["message"] = json!(error.message);
    body["param"] = json!(null);
    Bytes::from(format!("event: error\ndata: {body}\n\n"))
}

impl Body for Passing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            let Some(running) = &mut self.0 else { return Poll::Ready(None) };
            if running.deadline.as_mut().poll(context).is_ready() {
                if running.progress.ended {
                    return Poll::Ready(self.end());
                }
                let what = "did not end its stream within server.request_timeout_ms";
                return Poll::Ready(self.cut(Failure::OutOfTime, "timeout", what));
            }
            let chunk = match Pin::new(&mut running.upstream).poll_frame(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(self.end()),
                Poll::Ready(Some(Err(_))) if running.progress.ended => return Poll::Ready(self.end()),
                Poll::Ready(Some(Err(_))) => {
                    return Poll::Ready(self.cut(Failure::BrokeOff, "stream_broken", "broke the stream off"));
                }
                Poll::Ready(Some(Ok(frame))) => frame.into_data(),
            };
            let Ok(chunk) = chunk else { continue };
            let Ok(events) = running.splitter.push(chunk) else {
                return Poll::Ready(self.cut(
                    Failure::TooLong,
                    "stream_garbage",
                    "sent an event that is too long",
                ));
            };
            let events = running.pass(events);
            if !events.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(sse::join(events)))));
            }
        }
    }
}

impl Running {
    fn pass(&mut self, events: Vec<Bytes>) -> Vec<Bytes> {
        if self.progress.events == 0 && !events.is_empty() {
            self.booking.prefilled();
        }
        self.booking.generated(events.len() as u32);
        self.outcome.generated(events.len() as u32);
        let had_ended = self.progress.ended;
        let events: Vec<_> = events
            .into_iter()
            .map(sse::without_internal)
            .take_while(|event| self.progress.takes(event))
            .collect();
        if self.progress.ended && !had_ended {
            // The rest is waited for only so that the connection can be used again.
            self.deadline.as_mut().reset(Instant::now() + END_AFTER_LAST);
        }
        events
    }
}

/// How far a stream is.
#[derive(Debug, PartialEq, Eq)]
struct Progress {
    last_types: &'static [&'static str],
    events: u64,
    /// `[DONE]` came: what follows is no part of the answer.
    done: bool,
    /// An event came that is the last, or `[DONE]`.
    ended: bool,
    /// An event told that the engine failed.
    failed: bool,
}

impl Progress {
    fn of(fate: Fate) -> Self {
        let last_types = match fate {
            Fate::Generates(last_types) => last_types,
            Fate::Prefills | Fate::Tokenizes | Fate::Form => &[],
        };
        Self { last_types, events: 0, done: false, ended: false, failed: false }
    }

    /// Takes the next event in; whether it is part of the answer.
    fn takes(&mut self, event: &[u8]) -> bool {
        if self.done {
            return false;
        }
        self.events += 1;
        if sse::payload(event) == Some(b"[DONE]") {
            self.done = true;
            self.ended = true;
        } else if let Some(name) = event_type(event) {
            self.ended |= self.last_types.iter().any(|last| last.as_bytes() == name);
            self.failed |= matches!(name, b"error" | b"response.failed");
        }
        true
    }

    /// Whether a stream that ends now is whole. Where the last event's type is not known, HTTP's own end must do.
    fn is_whole(&self) -> bool {
        self.ended || (self.last_types.is_empty() && self.events > 0)
    }
}

/// An event's name, which vLLM writes before its payload; else the payload's `type`.
fn event_type(event: &[u8]) -> Option<&[u8]> {
    let named = event.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"event:"));
    if let Some(name) = named {
        return Some(name.trim_ascii());
    }
    let members = Members::parse(sse::payload(event)?).ok()?;
    let value = members.get("type")?.get().as_bytes();
    value.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passthrough::paths::find;

    /// Events of a stream; how many of them are passed, whether it is whole then, and whether it failed.
    fn check(path: &str, events: &[&str], expected: (usize, bool, bool)) {
        let mut progress = Progress::of(find(path).expect("known").fate);
        let passed = events.iter().take_while(|event| progress.takes(event.as_bytes())).count();
        assert_eq!((passed, progress.is_whole(), progress.failed), expected, "{path} {events:?}");
    }

    #[test]
    fn a_stream_is_whole_when_it_says_so() {
        let delta = "event: response.output_text.delta\ndata: {\"delta\":\"response.completed\"}\n\n";
        let completed = "event: response.completed\ndata: {}\n\n";
        let unnamed = "data: {\"type\":\"response.completed\"}\n\n";
        let done = "data: [DONE]\n\n";
        check("/v1/responses", &[], (0, false, false));
        check("/v1/responses", &[delta], (1, false, false));
        check("/v1/responses", &[delta, completed], (2, true, false));
        check("/v1/responses", &[delta, unnamed], (2, true, false));
        check("/v1/responses", &[delta, "event: response.failed\ndata: {}\n\n"], (2, true, true));
        check("/v1/responses", &[delta, "event: error\ndata: {}\n\n"], (2, true, true));
        check("/v1/messages", &["event: message_delta\ndata: {}\n\n"], (1, false, false));
        check("/v1/messages", &["event:message_stop\r\ndata: {}\r\n\r\n", done], (2, true, false));
        check("/v1/messages", &[done, delta, done], (1, true, false));
        // Nothing is known of how such a stream ends.
        check("/v1/embeddings", &[delta], (1, true, false));
        check("/v1/embeddings", &[], (0, false, false));
    }

    #[test]
    fn an_error_is_one_to_every_client() {
        let error = ApiError::new(StatusCode::BAD_GATEWAY, Blame::Decode, "stream_broken", "it broke");
        let event = error_event(&error);
        assert!(event.starts_with(b"event: error\ndata: ") && event.ends_with(b"\n\n"));
        let told: serde_json::Value =
            serde_json::from_slice(sse::payload(&event).expect("a payload")).expect("JSON");
        assert_eq!(
            (&told["type"], &told["code"], &told["message"]),
            (&json!("error"), &json!("stream_broken"), &json!("it broke"))
        );
        assert_eq!(told["error"]["code"], "stream_broken");
    }
}
