//! A stream of a passed request: event by event as the bytes came, less what is internal, driven by the client's
//! connection. It is whole only if it says so; one that breaks ends in an error event.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::StatusCode;
use hyper::body::{Body, Frame};
use serde_json::json;
use sluice_core::failure::Failure;

use super::attempt::Streamed;
use super::opening::{event_type, is_failure};
use super::paths::Fate;
use crate::fleet::{Booking, Leg};
use crate::http::error::{ApiError, Blame};
use crate::http::sse::{self, Splitter};
use crate::pipeline::alarm::{Alarm, Cut};
use crate::record::Record;
use crate::upstream::UpstreamBody;

/// A stream's body towards the client.
pub struct Passing(Option<Box<Running>>);

struct Running {
    upstream: UpstreamBody,
    splitter: Splitter,
    /// What came before the client was answered.
    held_back: Vec<Bytes>,
    alarm: Alarm,
    progress: Progress,
    booking: Booking,
    leg: Leg,
    record: Record,
}

impl Passing {
    pub(super) fn new(streamed: Streamed, fate: Fate, record: Record, alarm: Alarm) -> Self {
        let Streamed { opened, mut booking, mut leg } = streamed;
        booking.prefilled();
        leg.first_byte();
        Self(Some(Box::new(Running {
            upstream: opened.body,
            splitter: opened.splitter,
            held_back: opened.events,
            alarm,
            progress: Progress::of(fate),
            booking,
            leg,
            record,
        })))
    }

    /// The engine's stream is over, if only because its last event came.
    fn end(&mut self) -> Option<Result<Frame<Bytes>, Infallible>> {
        let whole = self.0.as_ref()?.progress.is_whole();
        if !whole {
            return self.cut(Cut::Broken);
        }
        let mut running = *self.0.take()?;
        if running.progress.failed {
            running.leg.failed(Failure::ErrorInAnswer, "it sent an error event");
            running.record.broke();
        } else {
            running.leg.went_well();
            running.record.ok();
        }
        None
    }

    /// Tells the client that the stream broke: half an answer must not pass for a whole one.
    fn cut(&mut self, cut: Cut) -> Option<Result<Frame<Bytes>, Infallible>> {
        let mut running = *self.0.take()?;
        let worker = running.booking.worker();
        let (failure, code, what) = cut.told();
        let message = format!("worker {:?} {what}; the answer is incomplete", worker.name);
        running.leg.failed(failure, &message);
        running.record.broke();
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
            if !running.held_back.is_empty() {
                let events = std::mem::take(&mut running.held_back);
                return Poll::Ready(Some(Ok(Frame::data(sse::join(running.pass(events))))));
            }
            let chunk = match Pin::new(&mut running.upstream).poll_frame(context) {
                Poll::Pending => match running.alarm.poll(context) {
                    Poll::Pending => return Poll::Pending,
                    // Only its connection was waited for.
                    Poll::Ready(_) if running.progress.ended => return Poll::Ready(self.end()),
                    Poll::Ready(cut) => return Poll::Ready(self.cut(cut)),
                },
                Poll::Ready(None) => return Poll::Ready(self.end()),
                Poll::Ready(Some(Err(_))) if running.progress.ended => return Poll::Ready(self.end()),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(self.cut(Cut::Broken)),
                Poll::Ready(Some(Ok(frame))) => frame.into_data(),
            };
            let Ok(chunk) = chunk else { continue };
            let Ok(events) = running.splitter.push(chunk) else {
                return Poll::Ready(self.cut(Cut::TooLong));
            };
            if !events.is_empty() {
                running.alarm.event();
            }
            let events = running.pass(events);
            if !events.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(sse::join(events)))));
            }
        }
    }
}

impl Running {
    fn pass(&mut self, events: Vec<Bytes>) -> Vec<Bytes> {
        let generated = events.iter().filter(|event| sse::payload(event).is_some()).count() as u32;
        self.booking.generated(generated);
        self.record.generated(generated);
        let had_ended = self.progress.ended;
        let events: Vec<_> = events
            .into_iter()
            .map(sse::without_internal)
            .take_while(|event| self.progress.takes(event))
            .collect();
        if self.progress.ended && !had_ended {
            self.alarm.last_event();
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
        }
        self.failed |= is_failure(event);
        true
    }

    /// Whether a stream that ends now is whole. Where the last event's type is not known, HTTP's own end must do.
    fn is_whole(&self) -> bool {
        self.ended || (self.last_types.is_empty() && self.events > 0)
    }
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
