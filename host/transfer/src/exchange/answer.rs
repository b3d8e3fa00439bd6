//! The answer to one command: a future without a runtime, or a wait with a deadline.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The exchange ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the exchange has stopped: attach to the next one")]
pub struct Stopped;

/// Comes once.
#[derive(Debug)]
pub struct Answer<T>(Arc<Slot<T>>);

/// Gives it. Dropped without one, it says [`Stopped`].
#[derive(Debug)]
pub(super) struct Reply<T>(Arc<Slot<T>>);

#[derive(Debug)]
struct Slot<T> {
    state: Mutex<State<T>>,
    given: Condvar,
}

#[derive(Debug)]
struct State<T> {
    value: Option<Result<T, Stopped>>,
    /// It was given, and taken perhaps.
    given: bool,
    waker: Option<Waker>,
}

/// Both ends.
pub(super) fn answer<T>() -> (Reply<T>, Answer<T>) {
    let state = Mutex::new(State { value: None, given: false, waker: None });
    let slot = Arc::new(Slot { state, given: Condvar::new() });
    (Reply(Arc::clone(&slot)), Answer(slot))
}

impl<T> Answer<T> {
    /// Waits for it without a runtime; `None` if it has not come by then, and then it may be asked for again.
    pub fn wait(&mut self, at_most: Duration) -> Option<Result<T, Stopped>> {
        let state = self.0.lock();
        let waited = self.0.given.wait_timeout_while(state, at_most, |state| state.value.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.value.take()
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, Stopped>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Reply<T> {
    pub(super) fn give(self, value: T) {
        self.0.give(Ok(value));
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        self.0.give(Err(Stopped));
    }
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only the first counts.
    fn give(&self, value: Result<T, Stopped>) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.given, true) {
            return;
        }
        state.value = Some(value);
        let waker = state.waker.take();
        drop(state);
        self.given.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
