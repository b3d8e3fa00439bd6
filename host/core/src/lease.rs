//! How long a turn's KV is kept: a time, or a lease that its policy is asked about at intervals.
//!
//! Pure: times are milliseconds of the caller's clock, one that does not step. Whoever holds the blocks grants less at a
//! time than policies may ask for, so a grant is renewed as long as the lease lasts.

use crate::verdict::Keep;

/// The longest grant at a time, ms: what the transfer core holds without a word from the host.
pub const GRANT_MS_MAX: u64 = 600_000;

/// A grant is renewed so long before it ends, ms: some rounds of a busy host.
pub const GRANT_MARGIN_MS: u64 = 10_000;

/// The lease of one turn's KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    turn_ended_at_ms: u64,
    ends_at_ms: u64,
    granted_until_ms: u64,
    heartbeat_ms: Option<u32>,
    asks_at_ms: u64,
    renewals: u32,
}

/// What is to be done about a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Nothing yet.
    Nothing,
    /// The policy is to be asked whether it goes on.
    Ask,
    /// The holder is to be told to hold on for so long, in milliseconds.
    Grant(u64),
    /// It is over.
    Over,
}

impl Lease {
    /// The lease of a turn that ended now. The first grant is [`Self::grant_ms`].
    pub fn new(keep: Keep, now_ms: u64) -> Self {
        let ends_at_ms = now_ms + u64::from(keep.ttl_ms);
        let asks_at_ms = keep.heartbeat_ms.map_or(u64::MAX, |heartbeat_ms| now_ms + u64::from(heartbeat_ms));
        let mut lease = Self {
            turn_ended_at_ms: now_ms,
            ends_at_ms,
            granted_until_ms: now_ms,
            heartbeat_ms: keep.heartbeat_ms,
            asks_at_ms,
            renewals: 0,
        };
        lease.granted(lease.grant_ms(now_ms), now_ms);
        lease
    }

    /// How long the holder is to be asked for at a time, in milliseconds from now.
    pub fn grant_ms(&self, now_ms: u64) -> u64 {
        self.left_ms(now_ms).min(GRANT_MS_MAX)
    }

    /// The holder holds on for so long.
    pub fn granted(&mut self, for_ms: u64, now_ms: u64) {
        self.granted_until_ms = now_ms + for_ms;
    }

    /// The policy lets it go on for so long from now. Heartbeats go on at their interval.
    pub fn renewed(&mut self, for_ms: u32, now_ms: u64) {
        self.ends_at_ms = now_ms + u64::from(for_ms);
        self.renewals = self.renewals.saturating_add(1);
        self.asks_at_ms = self.heartbeat_ms.map_or(u64::MAX, |heartbeat_ms| now_ms + u64::from(heartbeat_ms));
    }

    /// What is to be done now.
    pub fn due(&self, now_ms: u64) -> Due {
        if self.ends_at_ms <= now_ms {
            return Due::Over;
        }
        if self.asks_at_ms <= now_ms {
            return Due::Ask;
        }
        if self.grants_again_at_ms() <= now_ms { Due::Grant(self.grant_ms(now_ms)) } else { Due::Nothing }
    }

    /// When something is to be done next.
    pub fn due_at_ms(&self) -> u64 {
        self.ends_at_ms.min(self.asks_at_ms).min(self.grants_again_at_ms())
    }

    /// How often its policy is asked, if it is.
    pub fn heartbeat_ms(&self) -> Option<u32> {
        self.heartbeat_ms
    }

    /// When it is over, unless its policy lets it go on.
    pub fn ends_at_ms(&self) -> u64 {
        self.ends_at_ms
    }

    /// How long the blocks are still good, in milliseconds.
    pub fn left_ms(&self, now_ms: u64) -> u64 {
        self.ends_at_ms.saturating_sub(now_ms)
    }

    /// Since the turn's end, in milliseconds.
    pub fn idle_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.turn_ended_at_ms)
    }

    /// How often its policy let it go on.
    pub fn renewals(&self) -> u32 {
        self.renewals
    }

    fn grants_again_at_ms(&self) -> u64 {
        if self.granted_until_ms >= self.ends_at_ms {
            return u64::MAX;
        }
        self.granted_until_ms.saturating_sub(GRANT_MARGIN_MS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keep(ttl_ms: u32, heartbeat_ms: Option<u32>) -> Keep {
        Keep { ttl_ms, heartbeat_ms }
    }

    #[test]
    fn a_time_ends_when_it_is_over() {
        let lease = Lease::new(keep(480_000, None), 1_000);
        assert_eq!((lease.due(1_000), lease.due_at_ms()), (Due::Nothing, 481_000));
        assert_eq!((lease.due(480_999), lease.left_ms(480_999)), (Due::Nothing, 1));
        assert_eq!((lease.due(481_000), lease.left_ms(481_000)), (Due::Over, 0));
    }

    #[test]
    fn a_lease_is_asked_about_at_its_interval() {
        let mut lease = Lease::new(keep(30_000, Some(10_000)), 0);
        assert_eq!((lease.due(9_999), lease.due(10_000)), (Due::Nothing, Due::Ask));
        lease.renewed(30_000, 10_500);
        lease.granted(lease.grant_ms(10_500), 10_500);
        assert_eq!((lease.due_at_ms(), lease.renewals(), lease.left_ms(10_500)), (20_500, 1, 30_000));
        assert_eq!(lease.idle_ms(20_500), 20_500);
        // A policy that shortens it is obeyed.
        lease.renewed(100, 20_500);
        assert_eq!(lease.due(20_600), Due::Over);
    }

    #[test]
    fn what_is_longer_than_a_grant_is_granted_again() {
        let mut lease = Lease::new(keep(1_500_000, None), 0);
        assert_eq!(lease.due_at_ms(), GRANT_MS_MAX - GRANT_MARGIN_MS);
        let now_ms = lease.due_at_ms();
        assert_eq!(lease.due(now_ms), Due::Grant(GRANT_MS_MAX));
        lease.granted(GRANT_MS_MAX, now_ms);
        let now_ms = lease.due_at_ms();
        assert_eq!(now_ms, 2 * (GRANT_MS_MAX - GRANT_MARGIN_MS));
        let Due::Grant(rest_ms) = lease.due(now_ms) else { panic!("{:?}", lease.due(now_ms)) };
        lease.granted(rest_ms, now_ms);
        assert_eq!(lease.due_at_ms(), 1_500_000);
    }

    proptest! {
        /// Whoever looks when something is due, and does it, finds the blocks granted until the end and not beyond.
        #[test]
        fn blocks_are_granted_as_long_as_the_lease_lasts(
            ttl_ms in 1..3_000_000_u32,
            heartbeat_ms in prop::option::of(100..2_000_000_u32),
            answers in prop::collection::vec(prop::option::of(1..3_000_000_u32), 0..20),
            late_ms in 0..GRANT_MARGIN_MS,
        ) {
            let mut lease = Lease::new(keep(ttl_ms, heartbeat_ms), 0);
            let (mut answers, mut granted_until_ms) = (answers.into_iter(), lease.granted_until_ms);
            for _ in 0..200 {
                let now_ms = lease.due_at_ms() + late_ms;
                prop_assert!(lease.ends_at_ms <= now_ms || granted_until_ms >= now_ms.min(lease.ends_at_ms));
                match lease.due(now_ms) {
                    Due::Nothing => prop_assert!(false, "nothing was due"),
                    Due::Over => return Ok(()),
                    Due::Ask => match answers.next().flatten() {
                        None => return Ok(()),
                        Some(for_ms) => {
                            lease.renewed(for_ms, now_ms);
                            lease.granted(lease.grant_ms(now_ms), now_ms);
                        }
                    },
                    Due::Grant(for_ms) => {
                        prop_assert!((1..=GRANT_MS_MAX).contains(&for_ms));
                        lease.granted(for_ms, now_ms);
                    }
                }
                granted_until_ms = lease.granted_until_ms;
                prop_assert!(granted_until_ms <= lease.ends_at_ms);
            }
        }
    }
}
