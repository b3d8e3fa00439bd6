//! KV blocks that a prefill worker keeps for somebody to read: it must live until they are read, or their lease ends.
//!
//! A handle whose reader is known to be done is over at once. Of any other it is not known whether the blocks were
//! read: it counts until its lease is over, so that a worker is called idle late rather than early.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::worker::Worker;
use crate::clock::Clock;

/// Stranded handles remembered per worker, each until its lease ends: 2,000 failures a second over a lease of 30 s.
/// Past it those that end first are forgotten; the last one, which the worker waits for, never is.
const STRANDED_AT_MOST: usize = 65_536;

/// A worker's handles, as plain data.
#[derive(Debug, Default)]
pub struct Holds {
    /// Somebody may still read them, or is reading.
    open: u32,
    /// Ends of the leases of those that nobody of ours will read.
    stranded: BinaryHeap<Reverse<Duration>>,
}

impl Holds {
    fn opened(&mut self) {
        self.open += 1;
    }

    fn ended(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    fn stranded(&mut self, lease_ends: Duration) {
        self.ended();
        if self.stranded.len() >= STRANDED_AT_MOST {
            self.stranded.pop();
        }
        self.stranded.push(Reverse(lease_ends));
    }

    /// Handles that keep blocks on the worker at `now`.
    pub fn live(&mut self, now: Duration) -> u32 {
        while self.stranded.peek().is_some_and(|Reverse(ends)| *ends <= now) {
            self.stranded.pop();
        }
        self.open.saturating_add(self.stranded.len() as u32)
    }
}

/// A live handle. Dropped without [`HandleGuard::over`], it is stranded: it counts until its lease is over.
pub struct HandleGuard {
    worker: Arc<Worker>,
    clock: Arc<dyn Clock>,
    lease: Duration,
    is_over: AtomicBool,
}

impl HandleGuard {
    /// The blocks were read, or their holder was told to free them: it keeps them no longer. Said again, it changes
    /// nothing.
    pub fn over(&self) {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            self.worker.holds().ended();
        }
    }
}

impl Drop for HandleGuard {
    fn drop(&mut self) {
        if !*self.is_over.get_mut() {
            // A reader's last sign of life renewed the lease at the latest now.
            self.worker.holds().stranded(self.clock.elapsed() + self.lease);
        }
    }
}

impl Worker {
    /// A handle to blocks on this worker was given out; they are kept for `lease_ms` after the last sign of a reader.
    pub fn hold_handle(self: &Arc<Self>, clock: &Arc<dyn Clock>, lease_ms: u64) -> HandleGuard {
        self.holds().opened();
        HandleGuard {
            worker: self.clone(),
            clock: clock.clone(),
            lease: Duration::from_millis(lease_ms),
            is_over: AtomicBool::new(false),
        }
    }

    /// Handles that keep blocks here now.
    pub fn live_handles(&self, now: Duration) -> u32 {
        self.holds().live(now)
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        // A panic while the lock was held leaves a count that is off by one at most.
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Open,
        End,
        Strand(u64),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            Just(Step::Open),
            Just(Step::End),
            (1..50_u64).prop_map(Step::Strand),
            (1..30_u64).prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 1..60)
    }

    proptest! {
        /// Against a model that keeps every handle in a list.
        #[test]
        fn each_handle_counts_until_it_is_over(steps in steps()) {
            let (mut holds, mut now) = (Holds::default(), 0);
            let (mut open, mut leases) = (0, Vec::new());
            for step in steps {
                match step {
                    Step::Open => { holds.opened(); open += 1; }
                    Step::End if open > 0 => { holds.ended(); open -= 1; }
                    Step::Strand(lease) if open > 0 => {
                        holds.stranded(Duration::from_millis(now + lease));
                        open -= 1;
                        leases.push(now + lease);
                    }
                    Step::Wait(ms) => now += ms,
                    Step::End | Step::Strand(_) => {}
                }
                let live = open + leases.iter().filter(|ends| **ends > now).count() as u32;
                prop_assert_eq!(holds.live(Duration::from_millis(now)), live);
            }
        }
    }

    #[test]
    fn a_flood_of_stranded_handles_keeps_the_last_lease() {
        let mut holds = Holds::default();
        let ends = |number: usize| Duration::from_millis(number as u64 + 1);
        for number in 0..STRANDED_AT_MOST + 10 {
            holds.opened();
            holds.stranded(ends(number));
        }
        assert_eq!(holds.live(Duration::ZERO) as usize, STRANDED_AT_MOST);
        let last = ends(STRANDED_AT_MOST + 9);
        assert_eq!((holds.live(last - Duration::from_nanos(1)), holds.live(last)), (1, 0));
    }
}
