//! Connections kept between requests, apart for each data thread: one that goes back to the thread it came from is
//! woken there, by that thread's own event loop.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::link::Link;
use crate::threads;

/// Idle connections kept per worker and thread. Beyond it, a burst's connections are closed when they fall idle.
const IDLE_CONNECTIONS_PER_WORKER: usize = 256;

/// How long an idle connection is kept. uvicorn, vLLM's server, closes after 5 s: closing first keeps requests
/// off connections that are about to go.
const IDLE_CONNECTION_KEPT: Duration = Duration::from_millis(3_000);

type Shelf = HashMap<Box<str>, VecDeque<Parked>>;

#[derive(Debug)]
struct Parked {
    link: Link,
    since: Instant,
}

/// All idle connections, by thread and worker.
#[derive(Debug)]
pub(super) struct Idle(Box<[Mutex<Shelf>]>);

impl Idle {
    /// For so many data threads. All other threads share one more place.
    pub fn new(threads: usize) -> Self {
        Self((0..=threads).map(|_| Mutex::default()).collect())
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        let last = self.0.len() - 1;
        let place = threads::data_thread().map_or(last, |number| number.min(last));
        // A panic while the lock was held leaves connections that are merely kept or lost.
        self.0[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection to this worker that was used last: the least likely to have been closed.
    pub fn take(&self, worker: &str) -> Option<Link> {
        let parked = self.shelf().get_mut(worker)?.pop_back()?;
        (parked.since.elapsed() < IDLE_CONNECTION_KEPT).then_some(parked.link)
    }

    pub fn keep(&self, worker: &str, link: Link) {
        let mut shelf = self.shelf();
        if !shelf.contains_key(worker) {
            shelf.insert(worker.into(), VecDeque::new());
        }
        if let Some(links) = shelf.get_mut(worker)
            && links.len() < IDLE_CONNECTIONS_PER_WORKER
        {
            links.push_back(Parked { link, since: Instant::now() });
        }
    }

    /// Closes those that were idle for too long, and with them what engines closed from their side.
    pub fn sweep(&self) {
        for shelf in &self.0 {
            let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
            for links in shelf.values_mut() {
                links.retain(|parked| parked.since.elapsed() < IDLE_CONNECTION_KEPT);
            }
        }
    }
}
