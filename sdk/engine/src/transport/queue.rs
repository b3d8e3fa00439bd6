//! A bounded queue between threads that can be closed from either side.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The queue was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the queue is closed")]
pub struct Closed;

/// First in, first out. Who puts in waits while it is full; closing it wakes everybody.
#[derive(Debug)]
pub struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    at_most: usize,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    is_closed: bool,
}

impl<T> Queue<T> {
    /// An empty queue of at most so many items.
    #[must_use]
    pub fn new(at_most: usize) -> Self {
        let state = State { items: VecDeque::new(), is_closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), at_most: at_most.max(1) }
    }

    /// Waits until there is room. Whoever takes out, or closes, ends the wait.
    ///
    /// # Errors
    /// If the queue was closed.
    pub fn push(&self, item: T) -> Result<(), Closed> {
        let full = |state: &mut State<T>| !state.is_closed && state.items.len() >= self.at_most;
        let waited = self.changed.wait_while(self.lock(), full);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return Err(Closed);
        }
        state.items.push_back(item);
        self.changed.notify_all();
        Ok(())
    }

    /// The next item, or nothing within `wait`.
    ///
    /// # Errors
    /// If the queue was closed and is empty.
    pub fn pop(&self, wait: Duration) -> Result<Option<T>, Closed> {
        let empty = |state: &mut State<T>| !state.is_closed && state.items.is_empty();
        let waited = self.changed.wait_timeout_while(self.lock(), wait, empty);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let item = state.items.pop_front();
        self.changed.notify_all();
        if item.is_none() && state.is_closed { Err(Closed) } else { Ok(item) }
    }

    /// Nothing more is put in; what is in can be taken.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Items in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_and_closing_ends_every_wait() {
        let queue = Queue::new(2);
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| {
                std::iter::from_fn(|| queue.pop(Duration::from_secs(60)).ok().flatten()).collect::<Vec<_>>()
            });
            for number in 0..100 {
                assert_eq!(queue.push(number), Ok(()));
                assert!(queue.len() <= 2);
            }
            queue.close();
            assert_eq!(taker.join().unwrap(), (0..100).collect::<Vec<_>>());
        });
        assert_eq!(queue.push(1), Err(Closed));
    }

    #[test]
    fn closing_wakes_who_waits_for_room() {
        let queue = Queue::new(1);
        queue.push(1).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.push(2));
            queue.close();
            assert_eq!(waiting.join().unwrap(), Err(Closed));
        });
        assert_eq!(queue.pop(Duration::ZERO), Ok(Some(1)));
        assert_eq!(queue.pop(Duration::ZERO), Err(Closed));
    }
}
