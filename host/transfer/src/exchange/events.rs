//! What an engine is told, by a bounded queue of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::limits::MAX_ENGINE_EVENTS;
use crate::protocol::{Attempt, BlockRef, HoldEnd, Reason, Rect, TransferId};

/// Something that an engine is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineEvent {
    /// This part is in place, from all ranks.
    Arrived {
        /// Of which attempt.
        attempt: Attempt,
        /// Which cells of its grid.
        rect: Rect,
    },
    /// All is in place, and the blocks are its own.
    Completed(Attempt),
    /// It will not come; the blocks come back by [`EngineEvent::Freed`].
    Failed {
        /// Which attempt.
        attempt: Attempt,
        /// Why.
        reason: Reason,
    },
    /// These blocks may still be written to: nobody may have them yet.
    Quarantined {
        /// Of which attempt.
        attempt: Attempt,
        /// Which.
        blocks: Arc<[BlockRef]>,
    },
    /// Blocks of a hold or of a failed attempt, to be given to whom the engine likes.
    Freed(Arc<[BlockRef]>),
    /// How a hold ended, once for each.
    HoldEnded {
        /// Which.
        id: TransferId,
        /// How.
        end: HoldEnd,
    },
    /// A hold elsewhere lasts so long; 0 if it is over.
    LeaseLeft {
        /// Which hold.
        id: TransferId,
        /// From now.
        left_ms: u64,
    },
}

/// Why an engine is attached no more. When this is told, nothing touches its memory any more, but for the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Detached {
    /// Its caller said so: it has died or gone.
    #[error("detached: it has died or gone")]
    Gone,
    /// A later life of the engine attached.
    #[error("a later life of this engine has attached")]
    Superseded,
    /// It left [`MAX_ENGINE_EVENTS`] events unread.
    #[error("it left {MAX_ENGINE_EVENTS} events unread")]
    Deaf,
    /// The exchange stopped.
    #[error("the exchange has stopped")]
    Stopped,
    /// The exchange ended without letting go of it: copies may be under way.
    #[error("the exchange ended while KV was being copied: start the engine anew")]
    Abandoned,
}

/// The engine's end.
#[derive(Debug)]
pub struct Events(Arc<Shared>);

/// The exchange's end.
#[derive(Debug)]
pub(super) struct Teller(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<EngineEvent>,
    /// An event was lost: those after it would not make sense.
    deaf: bool,
    end: Option<Detached>,
    waker: Option<Waker>,
}

/// There is no room for one more event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deaf;

/// Both ends of a queue of so many events.
pub(super) fn events(limit: usize) -> (Teller, Events) {
    let shared = Arc::new(Shared { limit, state: Mutex::default(), told: Condvar::new() });
    (Teller(Arc::clone(&shared)), Events(shared))
}

impl Events {
    /// The next event if there is one; an error, after the last, if the engine is attached no more.
    pub fn try_next(&mut self) -> Result<Option<EngineEvent>, Detached> {
        self.0.lock().next()
    }

    /// The next event, waited for without a runtime; `None` if none came in time.
    pub fn next(&mut self, at_most: Duration) -> Result<Option<EngineEvent>, Detached> {
        let state = self.0.lock();
        let none = |state: &mut State| state.queue.is_empty() && state.end.is_none();
        let waited = self.0.told.wait_timeout_while(state, at_most, none);
        waited.unwrap_or_else(PoisonError::into_inner).0.next()
    }

    /// The next event, for a runtime's task.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<EngineEvent, Detached>> {
        let mut state = self.0.lock();
        match state.next() {
            Ok(Some(event)) => Poll::Ready(Ok(event)),
            Err(end) => Poll::Ready(Err(end)),
            Ok(None) => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Teller {
    pub(super) fn tell(&self, event: EngineEvent) -> Result<(), Deaf> {
        let mut state = self.0.lock();
        state.deaf |= state.queue.len() >= self.0.limit;
        if state.deaf {
            return Err(Deaf);
        }
        state.queue.push_back(event);
        self.0.woken(state);
        Ok(())
    }

    /// The end always has room. Only the first counts.
    pub(super) fn end(&self, end: Detached) {
        let mut state = self.0.lock();
        state.end.get_or_insert(end);
        self.0.woken(state);
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.end(Detached::Abandoned);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn woken(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        drop(state);
        self.told.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl State {
    fn next(&mut self) -> Result<Option<EngineEvent>, Detached> {
        match (self.queue.pop_front(), self.end) {
            (Some(event), _) => Ok(Some(event)),
            (None, Some(end)) => Err(end),
            (None, None) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Epoch, TransferId};

    #[test]
    fn after_an_event_that_found_no_room_there_is_only_the_end() {
        let (teller, mut events) = events(2);
        let event = |id| EngineEvent::Completed(Attempt { id: TransferId(id), epoch: Epoch(1) });
        assert_eq!([1, 2, 3].map(|id| teller.tell(event(id))), [Ok(()), Ok(()), Err(Deaf)]);
        assert_eq!(events.try_next(), Ok(Some(event(1))));
        assert_eq!(teller.tell(event(4)), Err(Deaf), "a gap would not be seen");
        assert_eq!(events.try_next(), Ok(Some(event(2))));
        assert_eq!(events.next(Duration::ZERO), Ok(None), "the end is another's to say");
        teller.end(Detached::Deaf);
        drop(teller);
        assert_eq!(events.next(Duration::MAX), Err(Detached::Deaf), "the first end counts");
    }

    #[test]
    fn a_teller_that_is_gone_says_so() {
        let (teller, mut events) = events(1);
        drop(teller);
        assert_eq!(events.try_next(), Err(Detached::Abandoned));
    }
}
