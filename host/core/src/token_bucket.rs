//! Tokens per minute: a bucket that holds a minute's worth and fills evenly.
//!
//! A request takes what it may use before it starts and gives back what it did not use when it ends. One that used
//! more than it took leaves the bucket in debt.

/// What the bucket counts in, so that it fills by whole units each millisecond: a 60,000th of a token.
const UNITS: i128 = 60_000;

/// A bucket of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    per_minute_tokens: u64,
    level_units: i128,
    at_ms: u64,
}

/// Why tokens were not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    /// More than the bucket ever holds: waiting does not help.
    Never,
    /// There will be enough then, if nobody else takes them.
    For {
        /// From now.
        wait_ms: u64,
    },
}

impl TokenBucket {
    /// A full bucket.
    pub fn full(per_minute_tokens: u64, now_ms: u64) -> Self {
        let level_units = i128::from(per_minute_tokens) * UNITS;
        Self { per_minute_tokens, level_units, at_ms: now_ms }
    }

    /// Takes tokens, all or none.
    pub fn take(&mut self, tokens: u64, now_ms: u64) -> Result<(), Short> {
        if tokens > self.per_minute_tokens {
            return Err(Short::Never);
        }
        self.fill(now_ms);
        let wanted = i128::from(tokens) * UNITS;
        let missing = wanted - self.level_units;
        if missing > 0 {
            // A bucket of none is caught above unless nothing is asked for.
            let each_ms = i128::from(self.per_minute_tokens.max(1));
            let wait_ms = u64::try_from((missing + each_ms - 1) / each_ms).unwrap_or(u64::MAX);
            return Err(Short::For { wait_ms });
        }
        self.level_units -= wanted;
        Ok(())
    }

    /// Corrects what was taken by what was used.
    pub fn settle(&mut self, taken_tokens: u64, used_tokens: u64, now_ms: u64) {
        self.fill(now_ms);
        self.level_units += (i128::from(taken_tokens) - i128::from(used_tokens)) * UNITS;
        self.level_units = self.level_units.min(self.capacity());
    }

    /// Tokens left; below 0 when more was used than taken.
    pub fn left(&mut self, now_ms: u64) -> i64 {
        self.fill(now_ms);
        i64::try_from(self.level_units.div_euclid(UNITS)).unwrap_or(i64::MAX)
    }

    /// Tokens it holds, and gets a minute.
    pub fn per_minute_tokens(&self) -> u64 {
        self.per_minute_tokens
    }

    fn capacity(&self) -> i128 {
        i128::from(self.per_minute_tokens) * UNITS
    }

    /// A clock that steps back fills nothing.
    fn fill(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.at_ms);
        let filled = self.level_units + i128::from(passed_ms) * i128::from(self.per_minute_tokens);
        self.level_units = filled.min(self.capacity());
        self.at_ms = self.at_ms.max(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gives_a_minutes_worth_then_what_comes_in() {
        let mut bucket = TokenBucket::full(600, 0);
        assert_eq!(bucket.take(601, 0), Err(Short::Never));
        assert_eq!(bucket.take(600, 0), Ok(()));
        // 600 a minute are one each 100 ms.
        assert_eq!(bucket.take(5, 0), Err(Short::For { wait_ms: 500 }));
        assert_eq!(bucket.take(5, 499), Err(Short::For { wait_ms: 1 }));
        assert_eq!(bucket.take(5, 500), Ok(()));
        assert_eq!(bucket.left(1_000_000), 600, "it does not run over");
    }

    #[test]
    fn is_corrected_by_what_was_used() {
        let mut bucket = TokenBucket::full(600, 0);
        assert_eq!(bucket.take(500, 0), Ok(()));
        bucket.settle(500, 100, 0);
        assert_eq!(bucket.left(0), 500);
        bucket.settle(0, 800, 0);
        assert_eq!(bucket.left(0), -300);
        assert_eq!(bucket.take(1, 0), Err(Short::For { wait_ms: 30_100 }));
    }

    proptest! {
        /// Whoever waits as told is served, if nobody came between; and one millisecond earlier is not.
        #[test]
        fn the_wait_is_honest(per_minute in 1_u64..5_000_000, first in 0_u64..5_000_000, then in 1_u64..5_000_000) {
            let mut bucket = TokenBucket::full(per_minute, 0);
            let _ = bucket.take(first.min(per_minute), 0);
            let wanted = then.min(per_minute);
            if let Err(Short::For { wait_ms }) = bucket.take(wanted, 0) {
                prop_assert!(bucket.clone().take(wanted, wait_ms - 1).is_err());
                prop_assert_eq!(bucket.take(wanted, wait_ms), Ok(()));
            }
        }

        /// Over any stretch, no more is taken than the bucket held and got.
        #[test]
        fn never_gives_more_than_it_got(steps in prop::collection::vec((0_u64..2_000, 0_u64..700), 1..200)) {
            let mut bucket = TokenBucket::full(600, 0);
            let (mut now_ms, mut taken) = (0, 0);
            for (passed_ms, tokens) in steps {
                now_ms += passed_ms;
                if bucket.take(tokens, now_ms).is_ok() {
                    taken += tokens;
                }
                prop_assert!(taken <= 600 + now_ms / 100);
            }
        }
    }
}
