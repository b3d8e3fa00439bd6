//! A stream on its way from an engine to a client: event by event, as the bytes came.
//!
//! The client's connection drives it, so back-pressure reaches the engine, and a client that goes away drops
//! it, which closes the engine's connection and undoes the request's load.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use memchr::memmem::Finder;
use sluice_core::failure::Failure;
use tokio::time::Instant;

use super::alarm::{Alarm, Cut};
use super::answer::answer_end;
use super::stream_start::{Opened, is_done, tells_failure};
use super::told::Telling;
use super::turn::{AnswerEnd, Turn};
use crate::http::error::{ApiError, Blame};
use crate::http::internal::may_hold_internal;
use crate::http::members::Members;
use crate::http::sse::{self, Splitter};
use crate::record::Record;
use crate::upstream::UpstreamBody;

/// Pieces kept to read usage and finish from at the end: the finish chunk, the usage chunk, and one to spare. Each has
/// at least one event.
const LAST_PIECES_KEPT: usize = 3;

/// A stream's body towards the client.
pub struct Relay(Option<Box<Running>>);

struct Running {
    upstream: UpstreamBody,
    splitter: Splitter,
    /// Of what came before the client was answered.
    held_back: Bytes,
    alarm: Alarm,
    /// Pieces of whole events that came last.
    last: VecDeque<Bytes>,
    done_seen: bool,
    error_seen: bool,
    turn: Turn,
    record: Record,
}

impl Relay {
    pub(super) fn new(opened: Opened, turn: Turn, record: Record, deadline: Instant) -> Self {
        let silence_at_most = Duration::from_millis(turn.app.config.server.stream_silence_ms);
        let mut running = Running {
            upstream: opened.body,
            splitter: opened.splitter,
            held_back: sse::join(opened.events),
            alarm: Alarm::set(deadline, silence_at_most),
            last: VecDeque::with_capacity(LAST_PIECES_KEPT + 1),
            done_seen: false,
            error_seen: false,
            turn,
            record,
        };
        running.turn.first_token();
        Self(Some(Box::new(running)))
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
            if !running.held_back.is_empty() {
                let events = std::mem::take(&mut running.held_back);
                return Poll::Ready(Some(Ok(Frame::data(running.pass(events)))));
            }
            let frame = match Pin::new(&mut running.upstream).poll_frame(context) {
                Poll::Pending => match running.alarm.poll(context) {
                    Poll::Pending => return Poll::Pending,
                    // Only its connection was waited for.
                    Poll::Ready(_) if running.done_seen => return Poll::Ready(self.end()),
                    Poll::Ready(cut) => return Poll::Ready(self.cut(cut)),
                },
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
            let Ok(whole) = running.splitter.push_whole(chunk) else {
                return Poll::Ready(self.cut(Cut::TooLong));
            };
            if !whole.is_empty() {
                running.alarm.event();
                return Poll::Ready(Some(Ok(Frame::data(running.pass(whole)))));
            }
        }
    }
}

impl Running {
    /// What the client gets of a piece of whole events.
    fn pass(&mut self, whole: Bytes) -> Bytes {
        let looks_at_each = self.turn.telling.as_ref().is_some_and(Telling::looks_at_each);
        if !looks_at_each && is_plain(&whole) {
            self.turn.generated(sse::count(&whole) as u32);
            self.keep(&whole);
            return whole;
        }
        let mut out = Vec::new();
        for event in sse::events(&whole) {
            let told = match &mut self.turn.telling {
                Some(telling) => telling.event(event),
                None => Some(event),
            };
            let Some(event) = told else {
                // A token without words.
                self.turn.generated(1);
                continue;
            };
            let mut event = sse::without_internal(event);
            if let Some(prefilled) = self.turn.prefilled() {
                event = prefilled.in_event(event);
            }
            if is_done(&event) {
                self.done_seen = true;
                self.alarm.last_event();
                if self.error_seen {
                    // What failed does not end as if it were whole.
                    break;
                }
            } else {
                self.turn.generated(1);
                self.error_seen |= tells_failure(&event);
                self.keep(&event);
            }
            out.push(event);
            if self.done_seen {
                // What an engine sends after it is no part of the answer.
                break;
            }
        }
        sse::join(out)
    }

    fn keep(&mut self, piece: &Bytes) {
        if self.last.len() == LAST_PIECES_KEPT {
            self.last.pop_front();
        }
        self.last.push_back(piece.clone());
    }

    /// Usage and finish, from whichever of the last events has them.
    fn answer_end(&self) -> AnswerEnd {
        self.last.iter().flat_map(sse::events).fold(AnswerEnd::default(), |end, event| {
            let Some(Ok(members)) = sse::payload(&event).map(Members::parse) else { return end };
            let later = answer_end(&members);
            AnswerEnd {
                prompt_tokens: later.prompt_tokens.or(end.prompt_tokens),
                output_tokens: later.output_tokens.or(end.output_tokens),
                finish: later.finish.or(end.finish),
            }
        })
    }
}

/// Whether nothing in a piece can need a second look: most of a stream is passed on at the price of a search.
fn is_plain(whole: &[u8]) -> bool {
    static MARKS: LazyLock<[Finder<'static>; 3]> =
        LazyLock::new(|| ["cached_tokens", "error", "[DONE]"].map(Finder::new));
    !may_hold_internal(whole) && MARKS.iter().all(|mark| mark.find(whole).is_none())
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
            let why = "it sent an error event";
            running.turn.break_off(Failure::ErrorInAnswer, why, &mut running.record);
            return None;
        }
        let end = running.answer_end();
        let told = running.turn.telling.take().map(|telling| telling.end(&end));
        running.turn.finish(end, told, &mut running.record);
        None
    }

    /// Tells the client that the stream broke; a clean `[DONE]` would pass half an answer off as whole.
    fn cut(&mut self, cut: Cut) -> Option<Result<Frame<Bytes>, Infallible>> {
        let mut running = *self.0.take()?;
        let worker = running.turn.booking.worker().name.clone();
        let (failure, code, what) = cut.told();
        let message = format!("decode worker {worker:?} {what}; the answer is incomplete");
        running.turn.break_off(failure, &message, &mut running.record);
        let error = ApiError::new(hyper::StatusCode::BAD_GATEWAY, Blame::Decode, code, message);
        Some(Ok(Frame::data(Bytes::from(format!("data: {}\n\n", error.json())))))
    }
}
