//! A stream on its way from an engine to a client: event by event, as the bytes came.
//!
//! The client's connection drives it, so back-pressure reaches the engine, and a client that goes away drops
//! it, which closes the engine's connection and undoes the request's load.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use memchr::memmem::Finder;
use sluice_core::failure::Failure;
use tokio::task::coop::{has_budget_remaining, unconstrained};
use tokio::time::Instant;

use super::alarm::{Alarm, Cut};
use super::answer::answer_end;
use super::pinned::Pinned;
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

/// The most that is read of a stream whose client has left, in bytes, for what the engine keeps of its turn: what sockets hold,
/// looked through in milliseconds.
const LOOKED_THROUGH_AT_MOST_BYTES: usize = 4 * 1024 * 1024;

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
                Poll::Pending => match running.quiet(context) {
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

/// A client that leaves may not have taken the engine's last words, which say what the engine keeps.
impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(running) = &mut self.0 {
            running.look_through_what_came();
        }
    }
}

impl Running {
    /// The engine has no more to say now. How long that has lasted too long.
    fn quiet(&mut self, context: &mut Context<'_>) -> Poll<Cut> {
        // A task that has done enough for now is told that nothing is there, whatever is.
        if self.turn.pinned.is_some() && has_budget_remaining() {
            self.turn.ended_after(self.turn.app.clock.elapsed());
        }
        self.alarm.poll(context)
    }

    /// Looks for what the engine keeps of the turn in what has come of a stream that is passed on no more.
    fn look_through_what_came(&mut self) {
        if !self.turn.pinned.as_ref().is_some_and(Pinned::waits_for_handle) {
            return;
        }
        let Self { upstream, splitter, held_back, turn, .. } = self;
        if let Some(telling) = &mut turn.telling {
            telling.events(held_back);
            look_through(upstream, splitter, telling);
        }
    }

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
                by_stop_text: later.by_stop_text || end.by_stop_text,
            }
        })
    }
}

/// Has told what has come of a stream by now; nobody waits for more.
fn look_through<B: Body<Data = Bytes> + Unpin>(body: &mut B, splitter: &mut Splitter, telling: &mut Telling) {
    let mut left_bytes = LOOKED_THROUGH_AT_MOST_BYTES;
    let looking = poll_fn(|context| {
        while left_bytes > 0
            && let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut *body).poll_frame(context)
        {
            let Ok(chunk) = frame.into_data() else { continue };
            left_bytes = left_bytes.saturating_sub(chunk.len());
            let Ok(whole) = splitter.push_whole(chunk) else { break };
            telling.events(&whole);
        }
        Poll::Ready(())
    });
    let _ = pin!(unconstrained(looking)).poll(&mut Context::from_waker(Waker::noop()));
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
        running.look_through_what_came();
        let worker = running.turn.booking.worker().name.clone();
        let (failure, code, what) = cut.told();
        let message = format!("decode worker {worker:?} {what}; the answer is incomplete");
        running.turn.break_off(failure, &message, &mut running.record);
        let error = ApiError::new(hyper::StatusCode::BAD_GATEWAY, Blame::Decode, code, message);
        Some(Ok(Frame::data(Bytes::from(format!("data: {}\n\n", error.json())))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has come, and then nothing, or an end.
    struct Came(VecDeque<&'static str>, bool);

    impl Body for Came {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match (self.0.pop_front(), self.1) {
                (Some(piece), _) => Poll::Ready(Some(Ok(Frame::data(piece.into())))),
                (None, true) => Poll::Ready(None),
                (None, false) => Poll::Pending,
            }
        }
    }

    #[test]
    fn what_has_come_is_looked_through() {
        const EVENT: &str = "data: {\"kv_transfer_params\":{\"a\":1}}\n\n";
        let (begin, rest) = EVENT.split_at(20);
        for (pieces, ends, told) in [
            (&["data: {}\n\n", EVENT][..], false, true),
            (&["data: {}\n\n", begin, rest], true, true),
            (&["data: {}\n\n", begin], true, false),
            (&[], false, false),
        ] {
            let (mut telling, mut splitter) = (Telling::new(false, 0), Splitter::default());
            look_through(&mut Came(pieces.iter().copied().collect(), ends), &mut splitter, &mut telling);
            assert_eq!(telling.params().is_some(), told, "{pieces:?}");
        }
    }
}
