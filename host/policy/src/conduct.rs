//! Whether a policy fails so often that it is put aside.
//!
//! Pure, and only told of faults: a good call costs nothing but the number it is given anyway.

use std::collections::VecDeque;

/// How many calls back faults count. At the few calls a second of a quiet host that is minutes, which an operator still
/// has in mind; a busy host sees a sick policy within seconds.
pub const CALLS_WATCHED: u64 = 1_000;
/// Fewer faults than this put nothing aside: after a start, one in a hundred calls is one fault.
pub const FAULTS_MIN: u64 = 5;
/// More faults than this in a thousand calls put a policy aside. Each may hold a data thread for a whole CPU budget:
/// at 1%, loops of 5 ms come to 50 us a call, many times what the good calls take.
pub const FAULTS_PER_THOUSAND_MAX: u64 = 10;

/// How many of the last calls were faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) faults: u64,
    /// [`CALLS_WATCHED`], or fewer where there were not so many yet.
    pub(crate) calls: u64,
}

/// The faults among the last calls, each by how many calls there were when it came. By its own call's number it
/// would be forgotten too soon: a loop ends thousands of other threads' calls after it began.
#[derive(Debug, Default)]
pub(crate) struct Conduct {
    /// Oldest first. As many as it takes to be too many, and no more while the caller heeds the answer.
    faults: VecDeque<u64>,
}

impl Conduct {
    /// One more fault, after so many calls, its own among them. The number never falls. Answers with the tally if that
    /// is too many.
    pub(crate) fn fault(&mut self, calls: u64) -> Option<Tally> {
        let watched = calls.min(CALLS_WATCHED);
        let forgotten = calls - watched;
        while self.faults.front().is_some_and(|number| *number <= forgotten) {
            self.faults.pop_front();
        }
        self.faults.push_back(calls);
        let tally = Tally { faults: self.faults.len() as u64, calls: watched };
        let too_many =
            tally.faults >= FAULTS_MIN && tally.faults * 1_000 > tally.calls * FAULTS_PER_THOUSAND_MAX;
        too_many.then_some(tally)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The number of the call that puts a policy aside whose calls with these numbers are faults.
    fn aside_after(faults: impl IntoIterator<Item = u64>) -> Option<u64> {
        let mut conduct = Conduct::default();
        faults.into_iter().find(|number| conduct.fault(*number).is_some())
    }

    #[test]
    fn more_than_one_in_a_hundred_and_at_least_five() {
        let every = |period: u64| (1..=100_000 / period).map(move |index| index * period);
        for (what, found, expected) in [
            ("each call", aside_after(1..=10), Some(5)),
            ("four of four", aside_after(1..=4), None),
            ("each second call", aside_after(every(2)), Some(10)),
            ("one in 99, from the start", aside_after(every(99)), Some(99 * 5)),
            ("one in 90", aside_after(every(90)), Some(90 * 5)),
            ("one in 100, for ever", aside_after(every(100)), None),
            ("one in 200, for ever", aside_after(every(200)), None),
            ("ten at once, late", aside_after(5_001..=5_010), None),
            ("eleven at once, late", aside_after(5_001..=5_011), Some(5_011)),
            ("the tenth and eleventh a window apart", aside_after((5_001..=5_010).chain([6_001])), None),
            ("and one call sooner", aside_after((5_001..=5_010).chain([6_000])), Some(6_000)),
            ("five after 499 good ones", aside_after(500..=504), None),
            ("five among the first 499", aside_after(495..=499), Some(499)),
        ] {
            assert_eq!(found, expected, "{what}");
        }
    }

    proptest! {
        /// The same answer as from a list of all calls.
        #[test]
        fn it_counts_as_a_list_of_all_calls_does(
            calls in prop::collection::vec(prop::bool::weighted(0.012), 1..6_000)
        ) {
            let mut conduct = Conduct::default();
            for (index, is_fault) in calls.iter().enumerate() {
                if !is_fault {
                    continue;
                }
                let window = &calls[(index + 1).saturating_sub(1_000)..=index];
                let faults = window.iter().filter(|fault| **fault).count();
                let expected = faults >= 5 && faults as f64 > 0.01 * window.len() as f64;
                let found = conduct.fault(index as u64 + 1);
                prop_assert_eq!(found.is_some(), expected, "call {}", index + 1);
                prop_assert!(conduct.faults.len() <= 11, "what it remembers is bounded");
                if expected {
                    prop_assert_eq!(found, Some(Tally { faults: faults as u64, calls: window.len() as u64 }));
                    break;
                }
            }
        }

        /// Threads tell faults late and in bursts: the numbers rise, but not one by one.
        #[test]
        fn bursts_are_counted_whole(steps in prop::collection::vec(0_u64..400, 1..200)) {
            let mut conduct = Conduct::default();
            let mut told: Vec<u64> = Vec::new();
            let mut calls = 1;
            for step in steps {
                calls += step;
                told.push(calls);
                let recent = told.iter().filter(|number| **number + 1_000 > calls).count() as u64;
                let expected = recent >= 5 && recent * 100 > calls.min(1_000);
                prop_assert_eq!(conduct.fault(calls).is_some(), expected);
                if expected {
                    break;
                }
            }
        }
    }
}
