//! How a version stands: its calls, its faults, and whether it was put aside for them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::Serialize;

use crate::conduct::{Conduct, Tally};
use crate::fault::{FAULT_KINDS, Fault};

/// What a version was put aside for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failing {
    /// Its calls failed.
    Calls,
    /// Calls that were run again gave another answer.
    ReRuns,
}

/// A version that decides no more, because it failed too often. The same file with the same settings stays aside; a
/// change of either gets a fresh chance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PutAside {
    /// What failed.
    pub failing: Failing,
    /// How many of the last calls, or of those run again, failed.
    pub faults: u64,
    /// Of how many.
    pub of: u64,
    /// The last one, for people.
    pub last_fault: String,
    /// When, ms since the Unix epoch.
    pub at_ms: u64,
}

impl fmt::Display for PutAside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { faults, of, last_fault, .. } = self;
        let what = match self.failing {
            Failing::Calls => "calls failed",
            Failing::ReRuns => "calls that were run again gave another answer",
        };
        write!(
            f,
            "{faults} of its last {of} {what}, at last: {last_fault}; \
             it stays aside until its file or its settings change"
        )
    }
}

/// Counts of one version. A good call touches one counter.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    calls: AtomicU64,
    /// Calls that were run again to compare the answers.
    re_runs: AtomicU64,
    faults: [AtomicU64; FAULT_KINDS.len()],
    conduct: Mutex<Both>,
    aside: OnceLock<PutAside>,
}

/// Only a few calls are run again, so what differs there is held against those: against all calls, a policy that never
/// gives the same answer twice would seem to fail in one of 256.
#[derive(Debug, Default)]
struct Both {
    calls: Conduct,
    re_runs: Conduct,
}

impl Standing {
    /// One more call; its number, from 1.
    pub(crate) fn call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// One more call was run again.
    pub(crate) fn re_run(&self) {
        self.re_runs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a fault. True for the one that puts the version aside.
    pub(crate) fn fault(&self, fault: &Fault, now_ms: impl FnOnce() -> u64) -> bool {
        self.faults[fault.index()].fetch_add(1, Ordering::Relaxed);
        if !fault.speaks_of_the_policy() || self.aside.get().is_some() {
            return false;
        }
        let Some((failing, tally)) = self.too_many(fault) else { return false };
        let aside = PutAside {
            failing,
            faults: tally.faults,
            of: tally.calls,
            last_fault: fault.to_string(),
            at_ms: now_ms(),
        };
        self.aside.set(aside).is_ok()
    }

    fn too_many(&self, fault: &Fault) -> Option<(Failing, Tally)> {
        let mut both = self.conduct.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock: they must not fall from one fault to the next.
        let re_runs = matches!(fault, Fault::Impure { .. })
            .then(|| both.re_runs.fault(self.re_runs.load(Ordering::Relaxed)))
            .flatten();
        let calls = both.calls.fault(self.calls());
        let re_runs = re_runs.map(|tally| (Failing::ReRuns, tally));
        calls.map(|tally| (Failing::Calls, tally)).or(re_runs)
    }

    pub(crate) fn put_aside(&self) -> Option<&PutAside> {
        self.aside.get()
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn faults(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.faults.iter().map(|count| count.load(Ordering::Relaxed));
        FAULT_KINDS.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Hook;

    fn trap() -> Fault {
        Fault::Trap { hook: Hook::Route, trap: "unreachable".to_owned() }
    }

    /// Calls, of which those for which `fault` has one fail; the numbers of those that put the version aside.
    fn run(calls: u64, fault: impl Fn(u64) -> Option<Fault>) -> (Standing, Vec<u64>) {
        let standing = Standing::default();
        let tripped = (0..calls).filter_map(|_| {
            let number = standing.call();
            let fault = fault(number)?;
            if matches!(fault, Fault::Impure { .. }) {
                standing.re_run();
            }
            standing.fault(&fault, || 7).then_some(number)
        });
        let tripped = tripped.collect();
        (standing, tripped)
    }

    #[test]
    fn it_is_put_aside_once_and_says_why() {
        let (standing, tripped) = run(100, |_| Some(trap()));
        assert_eq!(tripped, [5]);
        assert_eq!((standing.calls(), standing.faults()["trap"]), (100, 100));
        let aside = standing.put_aside().unwrap();
        assert_eq!((aside.faults, aside.of, aside.at_ms), (5, 5, 7));
        let sentence = aside.to_string();
        assert!(sentence.starts_with("5 of its last 5 calls failed, at last: `route` trapped"), "{sentence}");
        assert!(sentence.ends_with("until its file or its settings change"), "{sentence}");
    }

    #[test]
    fn what_says_nothing_of_the_policy_does_not_count() {
        let (standing, tripped) = run(100, |number| {
            Some(match number % 2 {
                0 => Fault::Busy { hook: Hook::Route, limit: 1 },
                _ => Fault::Expired { hook: Hook::Route },
            })
        });
        assert_eq!((tripped, standing.put_aside().is_none()), (Vec::new(), true));
        assert_eq!(standing.faults().len(), 2, "but it is counted");
    }

    #[test]
    fn what_differs_is_held_against_the_calls_that_were_run_again() {
        // One in 256 is run again, and always differs: one in a hundred of all calls it never is.
        let impure = |number: u64| {
            number.is_multiple_of(256).then(|| Fault::impure(Hook::Route, "unified 0", "unified 1"))
        };
        let (standing, tripped) = run(10_000, impure);
        assert_eq!(tripped, [5 * 256]);
        let aside = standing.put_aside().unwrap();
        assert_eq!((aside.failing, aside.faults, aside.of), (Failing::ReRuns, 5, 5));
        assert!(
            aside.to_string().starts_with("5 of its last 5 calls that were run again gave another"),
            "{aside}"
        );
    }
}
