//! A stream on its way from an engine to a client: event by event, as the bytes came.
//!
//! The client's connection drives it, so back-pressure reaches the engine, and a client that goes away drops
//! it, which closes the engine's connection and undoes the request's load.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use memchr::memmem::Finder;
use tokio::time::{Instant, Sleep, sleep_until};

use super::answer::{answer_end, failed};
use super::turn::{AnswerEnd, Record, Turn};
use crate::http::error::{ApiError, Blame};
use crate::http::members::Members;
use crate::http::sse::{self, Splitter};
use crate::telemetry::labels::LegFailure;
use crate::upstream::UpstreamBody;

/// How long an engine may take to end its stream after `[DONE]`. Past it the answer is over all the same, and the
/// connection is closed.
const END_AFTER_DONE: Duration = Duration::from_millis(250);

/// Events kept to read usage and finish from at the end: the finish chunk, the usage chunk, and one to spare.
const LAST_EVENTS_KEPT: usize = 3;

/// A stream's body towards the client.
pub struct Relay(Option<Box<Running>>);

struct Running {
    upstream: UpstreamBody,
    splitter: Splitter,
    deadline: Pin<Box<Sleep>>,
    last: VecDeque<Bytes>,
    done_seen: bool,
    error_seen: bool,
    turn: Turn,
    record: Record,
}

/// Why a stream ended before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Broken,
    TimedOut,
    TooLong,
    Empty,
}

impl Relay {
    pub(super) fn new(upstream: UpstreamBody, turn: Turn, record: Record, deadline: Instant) -> Self {
        Self(Some(Box::new(Running {
            upstream,
            splitter: Splitter::default(),
            deadline: Box::pin(sleep_until(deadline)),
            last: VecDeque::with_capacity(LAST_EVENTS_KEPT + 1),
            done_seen: false,
            error_seen: false,
            turn,
            record,
        })))
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            let Some(running) = &mut self.0 else { return Poll::Ready(None) };
            if running.deadline.as_mut().poll(context).is_ready() {
                let whole = running.done_seen;
                return Poll::Ready(if whole { self.end() } else { self.cut(Cut::TimedOut) });
            }
            let frame = match Pin::new(&mut running.upstream).poll_frame(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(self.end()),
                // After `[DONE]` the answer is whole, whatever becomes of the connection.
                Poll::Ready(Some(Err(_))) if running.done_seen => return Poll::Ready(self.end()),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(self.cut(Cut::Broken)),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            let Ok(chunk) = frame.into_data() else { continue };
            if running.done_seen {
                continue;
            }
            let Ok(events) = running.splitter.push(chunk) else { return Poll::Ready(self.cut(Cut::TooLong)) };
            if running.last.is_empty() && events.first().is_some_and(|event| is_done(event)) {
                return Poll::Ready(self.cut(Cut::Empty));
            }
            if !events.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(running.pass(events)))));
            }
        }
    }
}

impl Running {
    fn pass(&mut self, events: Vec<Bytes>) -> Bytes {
        if self.last.is_empty() {
            self.turn.first_token();
        }
        self.turn.generated(events.len() as u32);
        let mut out = Vec::with_capacity(events.len());
        for event in events {
            let event = sse::without_internal(event);
            if is_done(&event) {
                self.done_seen = true;
                // The rest is waited for only so that the connection can be used again.
                self.deadline.as_mut().reset(Instant::now() + END_AFTER_DONE);
            } else {
                self.error_seen |= tells_failure(&event);
                self.last.push_back(event.clone());
                if self.last.len() > LAST_EVENTS_KEPT {
                    self.last.pop_front();
                }
            }
            out.push(event);
            if self.done_seen {
                // What an engine sends after it is no part of the answer.
                break;
            }
        }
        sse::join(out)
    }

    /// Usage and finish, from whichever of the last events has them.
    fn answer_end(&self) -> AnswerEnd {
        self.last.iter().fold(AnswerEnd::default(), |end, event| {
            let Some(Ok(members)) = sse::payload(event).map(Members::parse) else { return end };
            let later = answer_end(&members);
            AnswerEnd {
                prompt_tokens: later.prompt_tokens.or(end.prompt_tokens),
                output_tokens: later.output_tokens.or(end.output_tokens),
                finish: later.finish.or(end.finish),
            }
        })
    }
}

fn is_done(event: &[u8]) -> bool {
    sse::payload(event) == Some(b"[DONE]")
}

/// Whether a chunk says that the engine failed. The text is looked for first: most chunks are not parsed.
fn tells_failure(event: &[u8]) -> bool {
    thread_local! {
        static FINDER: Finder<'static> = Finder::new("error");
    }
    let lines = || event.split(|byte| *byte == b'\n').filter_map(sse::data);
    FINDER.with(|finder| finder.find(event).is_some())
        && lines().filter_map(|payload| Members::parse(payload).ok()).any(|members| failed(&members))
}

impl Relay {
    /// The engine's stream is over. Whole only if it said so.
    fn end(&mut self) -> Option<Result<Frame<Bytes>, Infallible>> {
        let running = self.0.as_ref()?;
        if !running.done_seen {
            return self.cut(Cut::Broken);
        }
        let mut running = *self.0.take()?;
        if running.error_seen {
            running.turn.break_off(LegFailure::ErrorEvent, &mut running.record);
            return None;
        }
        let end = running.answer_end();
        running.turn.finish(end, &mut running.record);
        None
    }

    /// Tells the client that the stream broke; a clean `[DONE]` would pass half an answer off as whole.
    fn cut(&mut self, cut: Cut) -> Option<Result<Frame<Bytes>, Infallible>> {
        let mut running = *self.0.take()?;
        let worker = running.turn.booking.worker().name.clone();
        let (kind, code, what) = match cut {
            Cut::Broken => (LegFailure::Broken, "stream_broken", "broke the stream off"),
            Cut::TimedOut => {
                (LegFailure::Timeout, "timeout", "did not end its stream within server.request_timeout_ms")
            }
            Cut::Empty => (LegFailure::NoAnswer, "stream_empty", "ended its stream before any chunk"),
            Cut::TooLong => (LegFailure::Garbage, "stream_garbage", "sent an event that is too long"),
        };
        let message = format!("decode worker {worker:?} {what}; the answer is incomplete");
        let error = ApiError::new(hyper::StatusCode::BAD_GATEWAY, Blame::Decode, code, message);
        running.turn.break_off(kind, &mut running.record);
        Some(Ok(Frame::data(Bytes::from(format!("data: {}\n\n", error.json())))))
    }
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
}
