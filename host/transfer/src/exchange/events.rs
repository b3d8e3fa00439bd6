//! What an engine is told, by a bounded queue of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sluice_engine_sdk::wire::ToEngine;

use super::limits::MAX_ENGINE_EVENTS;

/// Who hears what an engine is told. Both are called by the exchange's thread, which waits for nothing.
pub trait Ears: Send + Sync {
    /// Something happened.
    ///
    /// # Errors
    /// If there is no room, or nobody listens any more: the engine is detached then.
    fn tell(&self, event: ToEngine) -> Result<(), Deaf>;

    /// The last call: nothing touches the engine's memory any more, but for [`Detached::Abandoned`].
    fn end(&self, why: Detached);
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
    /// It left too many events unread, [`MAX_ENGINE_EVENTS`] of a queue in this process.
    #[error("it left too many events unread (up to {MAX_ENGINE_EVENTS} may wait)")]
    Deaf,
    /// The exchange stopped.
    #[error("the exchange has stopped")]
    Stopped,
    /// It was not attached at all: there was no room, or it makes no sense.
    #[error("it was not taken in: the host's log says why")]
    NotTaken,
    /// The exchange ended without letting go of it: copies may be under way.
    #[error("the exchange ended while KV was being copied: start the engine anew")]
    Abandoned,
}

/// The engine's end.
#[derive(Debug)]
pub struct Events(Arc<Shared>);

/// The end of a queue of events that hears.
#[derive(Debug)]
pub(super) struct Queued(Arc<Shared>);

/// The exchange's end, which says that it ended, however it ended.
pub(super) struct Teller {
    pub ears: Box<dyn Ears>,
    /// Whether the exchange has taken the engine in.
    pub is_taken: bool,
}

#[derive(Debug)]
struct Shared {
    limit: usize,
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<ToEngine>,
    /// An event was lost: those after it would not make sense.
    deaf: bool,
    end: Option<Detached>,
    waker: Option<Waker>,
}

/// There is no room for one more event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deaf;

/// Both ends of a queue of so many events.
pub(super) fn events(limit: usize) -> (Queued, Events) {
    let shared = Arc::new(Shared { limit, state: Mutex::default(), told: Condvar::new() });
    (Queued(Arc::clone(&shared)), Events(shared))
}

impl Events {
    /// The next event if there is one; an error, after the last, if the engine is attached no more.
    pub fn try_next(&mut self) -> Result<Option<ToEngine>, Detached> {
        self.0.lock().next()
    }

    /// The next event, waited for without a runtime; `None` if none came in time.
    pub fn next(&mut self, at_most: Duration) -> Result<Option<ToEngine>, Detached> {
        let state = self.0.lock();
        let none = |state: &mut State| state.queue.is_empty() && state.end.is_none();
        let waited = self.0.told.wait_timeout_while(state, at_most, none);
        waited.unwrap_or_else(PoisonError::into_inner).0.next()
    }

    /// The next event, for a runtime's task.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<ToEngine, Detached>> {
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

impl Ears for Queued {
    fn tell(&self, event: ToEngine) -> Result<(), Deaf> {
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
    fn end(&self, end: Detached) {
        let mut state = self.0.lock();
        state.end.get_or_insert(end);
        self.0.woken(state);
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        // After an end of another kind this one changes nothing.
        self.ears.end(if self.is_taken { Detached::Abandoned } else { Detached::NotTaken });
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
    fn next(&mut self) -> Result<Option<ToEngine>, Detached> {
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
    use crate::protocol::{Attempt, Epoch, TransferId};

    #[test]
    fn after_an_event_that_found_no_room_there_is_only_the_end() {
        let (teller, mut events) = events(2);
        let event = |id| ToEngine::Completed { attempt: Attempt { id: TransferId(id), epoch: Epoch(1) } };
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
        let (queued, mut events) = events(1);
        drop(Teller { ears: Box::new(queued), is_taken: true });
        assert_eq!(events.try_next(), Err(Detached::Abandoned));
        let (queued, mut events) = super::events(1);
        drop(Teller { ears: Box::new(queued), is_taken: false });
        assert_eq!(events.try_next(), Err(Detached::NotTaken));
    }
}
