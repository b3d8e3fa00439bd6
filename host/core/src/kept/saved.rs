//! Which kept turns come back with this host's next process.
//!
//! A turn is used once, and what was taken after the data was written is not in it. So turns come back only from data that was
//! written at the end, when nothing is taken any more ([`SavedAt::End`]), and that is read once: whoever reads it has it removed
//! before the first turn is taken. Of data that was written while this host went on, turns are uncertain: their holders may be told
//! to let go of them, which does no harm twice, and nobody reads them.
//!
//! This host's clock begins anew with its process, so times are saved as what is left of them.

use serde::{Deserialize, Serialize};

use super::Turn;
use crate::lease::Lease;
use crate::verdict::Keep;

/// When the data was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SavedAt {
    /// This host went on, and may have used any turn since.
    Running,
    /// Nothing was taken after it.
    End,
}

/// What is left of a turn's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Of its lease, in milliseconds.
    pub lease_ms: u64,
    /// Until nobody may begin to read it, in milliseconds.
    pub usable_ms: u64,
}

impl Left {
    /// Now.
    pub fn of(turn: &impl Turn, now_ms: u64) -> Self {
        Self {
            lease_ms: turn.lease().left_ms(now_ms),
            usable_ms: turn.usable_until_ms().saturating_sub(now_ms),
        }
    }

    /// The lease that it goes on under from now.
    pub fn lease(&self, heartbeat_ms: Option<u32>, now_ms: u64) -> Lease {
        let ttl_ms = u32::try_from(self.lease_ms).unwrap_or(u32::MAX);
        Lease::new(Keep { ttl_ms, heartbeat_ms }, now_ms)
    }

    /// From when on nobody may begin to read it.
    pub fn usable_until_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add(self.usable_ms)
    }
}

/// What becomes of a turn that was saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// It is kept on.
    GoesOn(Left),
    /// It may have been used since, and is to be let go.
    Uncertain(Left),
    /// Nothing is left of its time.
    Expired,
}

/// What becomes of a turn of which so much was left `away_ms` ago, at most: too much costs reuse, too little a wrong answer, so a
/// clock that may have stepped is no measure of it.
pub fn returned(at: SavedAt, left: Left, away_ms: u64) -> Returned {
    let usable_ms = left.usable_ms.saturating_sub(away_ms);
    let lease_ms = left.lease_ms.saturating_sub(away_ms).min(usable_ms);
    let left = Left { lease_ms, usable_ms };
    match at {
        _ if lease_ms == 0 => Returned::Expired,
        SavedAt::End => Returned::GoesOn(left),
        SavedAt::Running => Returned::Uncertain(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_comes_back_from_the_end_alone() {
        let left = |lease_ms, usable_ms| Left { lease_ms, usable_ms };
        for (before, away_ms, expected) in [
            (left(30_000, 470_000), 0, Some(left(30_000, 470_000))),
            (left(30_000, 470_000), 29_999, Some(left(1, 440_001))),
            (left(30_000, 470_000), 30_000, None),
            (left(30_000, 20_000), 5_000, Some(left(15_000, 15_000))),
            (left(30_000, 5_000), 5_000, None),
            (left(0, 5_000), 0, None),
            (left(30_000, 5_000), u64::MAX, None),
        ] {
            let at = |at| returned(at, before, away_ms);
            let goes_on = expected.map_or(Returned::Expired, Returned::GoesOn);
            let uncertain = expected.map_or(Returned::Expired, Returned::Uncertain);
            assert_eq!(
                (at(SavedAt::End), at(SavedAt::Running)),
                (goes_on, uncertain),
                "{before:?} {away_ms}"
            );
        }
    }

    #[test]
    fn times_go_on_by_the_next_clock() {
        let left = Left { lease_ms: 20_000, usable_ms: 470_000 };
        let lease = left.lease(Some(5_000), 7);
        assert_eq!(
            (lease.ends_at_ms(), lease.due_at_ms(), left.usable_until_ms(7)),
            (20_007, 5_007, 470_007)
        );
        let endless = Left { lease_ms: u64::MAX, usable_ms: u64::MAX };
        assert_eq!(endless.lease(None, 7).left_ms(7), u64::from(u32::MAX));
        assert_eq!(endless.usable_until_ms(7), u64::MAX);
    }
}
