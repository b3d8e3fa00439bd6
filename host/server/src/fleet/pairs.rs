//! Breakers of prefill/decode pairs. Only pairs in trouble are remembered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_core::breaker::{Breaker, PAIR_FAILURES_TO_OPEN};

/// Pairs remembered: more than 250 prefill workers each in trouble with 250 decode workers is no longer about pairs.
/// Past it new ones get no breaker, and their workers' own breakers stand for them.
const PAIRS_AT_MOST: usize = 65_536;

/// A prefill worker's and a decode worker's id.
pub type Pair = (u64, u64);

/// The pairs of one pool.
#[derive(Debug, Default)]
pub struct Pairs {
    breakers: Mutex<HashMap<Pair, Breaker>>,
    /// Entries of `breakers`, so that requests of a fleet without trouble take no lock.
    troubled: AtomicUsize,
}

impl Pairs {
    /// Whether a transfer may be tried between them.
    pub fn passes(&self, pair: Pair, now_ms: u64) -> bool {
        self.is_quiet() || self.lock().get(&pair).is_none_or(|breaker| breaker.passes(now_ms))
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        if self.is_quiet() { 0 } else { self.lock().values().filter(|breaker| !breaker.is_closed()).count() }
    }

    /// A decode leg is sent that fetches from its prefill worker. Returns whether it is the pair's trial.
    pub(super) fn sent(&self, pair: Pair, now_ms: u64) -> bool {
        !self.is_quiet() && self.lock().get_mut(&pair).is_some_and(|breaker| breaker.sent(now_ms))
    }

    pub(super) fn went_well(&self, pair: Pair) {
        self.change(|breakers| {
            if let Some(breaker) = breakers.get_mut(&pair) {
                breaker.went_well();
                if breaker.is_untroubled() {
                    breakers.remove(&pair);
                }
            }
        });
    }

    /// Returns whether the pair's breaker opened by it.
    pub(super) fn failed(&self, pair: Pair, now_ms: u64) -> bool {
        let mut breakers = self.lock();
        if breakers.len() >= PAIRS_AT_MOST && !breakers.contains_key(&pair) {
            return false;
        }
        let breaker = breakers.entry(pair).or_insert(Breaker::after(PAIR_FAILURES_TO_OPEN));
        let opened = breaker.failed(now_ms);
        self.troubled.store(breakers.len(), Ordering::Release);
        opened
    }

    pub(super) fn trial_left(&self, pair: Pair, now_ms: u64) {
        self.change(|breakers| {
            if let Some(breaker) = breakers.get_mut(&pair) {
                breaker.trial_left(now_ms);
            }
        });
    }

    /// A worker came up anew: what its pairs did before says nothing.
    pub(super) fn forget(&self, worker: u64) {
        self.change(|breakers| {
            breakers.retain(|(prefill, decode), _| *prefill != worker && *decode != worker)
        });
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<Pair, Breaker>)) {
        if self.is_quiet() {
            return;
        }
        let mut breakers = self.lock();
        change(&mut breakers);
        self.troubled.store(breakers.len(), Ordering::Release);
    }

    fn is_quiet(&self) -> bool {
        self.troubled.load(Ordering::Acquire) == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Pair, Breaker>> {
        // A panic while the lock was held leaves breakers that are merely older.
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_spared_while_its_workers_pair_with_others() {
        let pairs = Pairs::default();
        for _ in 0..PAIR_FAILURES_TO_OPEN {
            assert!(pairs.passes((1, 2), 0));
            pairs.failed((1, 2), 0);
        }
        assert!(!pairs.passes((1, 2), 0) && pairs.passes((1, 3), 0) && pairs.passes((4, 2), 0));
        assert_eq!(pairs.open(), 1);
    }

    #[test]
    fn what_went_well_or_came_up_anew_is_forgotten() {
        let pairs = Pairs::default();
        pairs.failed((1, 2), 0);
        pairs.went_well((1, 2));
        assert!(pairs.is_quiet());
        for _ in 0..PAIR_FAILURES_TO_OPEN {
            pairs.failed((1, 2), 0);
            pairs.failed((3, 4), 0);
        }
        pairs.forget(2);
        assert!(pairs.passes((1, 2), 0) && !pairs.passes((3, 4), 0));
    }
}
