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
    /// Of those that nobody of ours will read: when their time is over, and tokens of kept turns in them.
    stranded: BinaryHeap<Reverse<(Duration, u32)>>,
}

impl Holds {
    fn opened(&mut self) {
        self.open += 1;
    }

    fn ended(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// Tokens that are forgotten for it.
    fn stranded(&mut self, ends: Duration, tokens: u32) -> u64 {
        self.ended();
        let is_full = self.stranded.len() >= STRANDED_AT_MOST;
        let forgotten = if is_full { self.stranded.pop() } else { None };
        self.stranded.push(Reverse((ends, tokens)));
        forgotten.map_or(0, |Reverse((_, tokens))| tokens.into())
    }

    /// Handles that keep blocks on the worker at `now`, and tokens of those that do no more since the last look.
    pub fn live(&mut self, now: Duration) -> (u32, u64) {
        let mut over_tokens = 0;
        while let Some(Reverse((ends, tokens))) = self.stranded.peek()
            && *ends <= now
        {
            over_tokens += u64::from(*tokens);
            self.stranded.pop();
        }
        (self.open.saturating_add(self.stranded.len() as u32), over_tokens)
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

    /// Nobody can have the holder free them: it keeps them until `ends`, and so many tokens of a kept turn, which are counted
    /// as held already, with them. Said after the end, it changes nothing.
    pub fn stays_until(&self, ends: Duration, tokens: u32) {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            let forgotten = self.worker.holds().stranded(ends, tokens);
            self.worker.unhold_tokens(forgotten);
        }
    }
}

impl Drop for HandleGuard {
    fn drop(&mut self) {
        if !*self.is_over.get_mut() {
            // A reader's last sign of life renewed the lease at the latest now.
            self.worker.holds().stranded(self.clock.elapsed() + self.lease, 0);
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

    /// Handles that keep blocks here now. Tokens of kept turns whose time is over are held no more from this look on.
    pub fn live_handles(&self, now: Duration) -> u32 {
        let (handles, over_tokens) = self.holds().live(now);
        self.unhold_tokens(over_tokens);
        handles
    }

    /// Its engine was started anew: what stays there until its time is over was its former life's.
    pub(super) fn forget_stranded(&self) {
        self.live_handles(Duration::MAX);
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
            let (mut open, mut leases, mut tokens) = (0, Vec::new(), 0);
            for step in steps {
                match step {
                    Step::Open => { holds.opened(); open += 1; }
                    Step::End if open > 0 => { holds.ended(); open -= 1; }
                    Step::Strand(lease) if open > 0 => {
                        prop_assert_eq!(holds.stranded(Duration::from_millis(now + lease), lease as u32), 0);
                        open -= 1;
                        leases.push((now + lease, lease));
                        tokens += lease;
                    }
                    Step::Wait(ms) => now += ms,
                    Step::End | Step::Strand(_) => {}
                }
                leases.retain(|(ends, _)| *ends > now);
                let (live, over_tokens) = holds.live(Duration::from_millis(now));
                prop_assert_eq!(live, open + leases.len() as u32);
                tokens -= over_tokens;
                prop_assert_eq!(tokens, leases.iter().map(|(_, tokens)| *tokens).sum::<u64>());
            }
        }
    }

    #[test]
    fn a_flood_of_stranded_handles_keeps_the_last_lease() {
        let mut holds = Holds::default();
        let ends = |number: usize| Duration::from_millis(number as u64 + 1);
        let mut forgotten = 0;
        for number in 0..STRANDED_AT_MOST + 10 {
            holds.opened();
            forgotten += holds.stranded(ends(number), 2);
        }
        assert_eq!((holds.live(Duration::ZERO), forgotten), ((STRANDED_AT_MOST as u32, 0), 20));
        let last = ends(STRANDED_AT_MOST + 9);
        let rest = 2 * (STRANDED_AT_MOST as u64 - 1);
        assert_eq!((holds.live(last - Duration::from_nanos(1)), holds.live(last)), ((1, rest), (0, 2)));
    }
}
