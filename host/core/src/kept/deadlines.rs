//! Until when a kept turn may be read, and what is to be done about its lease as time goes by.
//!
//! Two times run. The lease is its policy's wish, which goes on as long as that is renewed. Where an engine keeps a turn by itself,
//! its own time for it cannot be changed, and past that the blocks may be another request's: so no lease goes beyond it.

use super::Ended;
use crate::lease::{Due, Lease};
use crate::verdict::Keep;

/// The deadline of KV that its holder keeps for `held_for_ms` after its answer, as far as can be told here. The margin is for what
/// cannot: the answer's way, the other clock's pace, the way of the request that reads it.
pub fn usable_until_ms(answered_ms: u64, held_for_ms: u64, margin_ms: u64) -> u64 {
    answered_ms.saturating_add(held_for_ms.saturating_sub(margin_ms))
}

/// The lease of a turn that ended now, no longer than the turn may be read. `None`: no time is left of it.
pub fn lease_within(keep: Keep, usable_until_ms: u64, now_ms: u64) -> Option<Lease> {
    let ttl_ms = within(keep.ttl_ms, usable_until_ms, now_ms);
    (ttl_ms > 0).then(|| Lease::new(Keep { ttl_ms, ..keep }, now_ms))
}

fn within(for_ms: u32, usable_until_ms: u64, now_ms: u64) -> u32 {
    for_ms.min(u32::try_from(usable_until_ms.saturating_sub(now_ms)).unwrap_or(u32::MAX))
}

/// What is to be done about a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it goes on.
    GoesOn,
    /// Its policy is to be asked, and [`answered`] says what comes of that.
    Ask,
    /// Its holder is to be told to hold on for so long, in milliseconds.
    HoldOn(u64),
    /// It is over.
    End(Ended),
}

/// What is to be done now under this lease. `margin_ms`: the least of it with which somebody would still begin to read.
pub fn next(lease: &Lease, now_ms: u64, margin_ms: u64) -> Next {
    match lease.due(now_ms) {
        Due::Nothing => Next::GoesOn,
        Due::Over => Next::End(Ended::Expired),
        Due::Ask => Next::Ask,
        Due::Grant(for_ms) => hold_on(for_ms, margin_ms),
    }
}

/// Its policy wants it for so many milliseconds more, if at all; what is to be done then.
pub fn answered(
    lease: &mut Lease,
    wanted_ms: Option<u32>,
    usable_until_ms: u64,
    now_ms: u64,
    margin_ms: u64,
) -> Next {
    let Some(for_ms) = wanted_ms else { return Next::End(Ended::Released) };
    lease.renewed(within(for_ms, usable_until_ms, now_ms), now_ms);
    hold_on(lease.grant_ms(now_ms), margin_ms)
}

fn hold_on(for_ms: u64, margin_ms: u64) -> Next {
    if for_ms > margin_ms { Next::HoldOn(for_ms) } else { Next::End(Ended::Expired) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_leave_a_margin() {
        for (answered_ms, held_for_ms, margin_ms, expected) in
            [(1_000, 480_000, 2_000, 479_000), (1_000, 500, 2_000, 1_000), (1, u64::MAX, 0, u64::MAX)]
        {
            assert_eq!(usable_until_ms(answered_ms, held_for_ms, margin_ms), expected);
        }
    }

    #[test]
    fn no_lease_goes_beyond_what_may_be_read() {
        for (ttl_ms, usable_until_ms, expected) in [
            (30_000, u64::MAX, Some(31_000)),
            (30_000, 31_000, Some(31_000)),
            (30_000, 30_999, Some(30_999)),
            (u32::MAX, 1_001, Some(1_001)),
            (30_000, 1_000, None),
            (30_000, 10, None),
        ] {
            let lease = lease_within(Keep { ttl_ms, heartbeat_ms: None }, usable_until_ms, 1_000);
            let ends_at_ms = lease.map(|lease| lease.ends_at_ms());
            assert_eq!(ends_at_ms, expected, "{ttl_ms} until {usable_until_ms}");
        }
    }

    #[test]
    fn what_is_done_as_time_goes_by() {
        const KEEP: Keep = Keep { ttl_ms: 30_000, heartbeat_ms: Some(10_000) };
        let lease = Lease::new(KEEP, 0);
        for (now_ms, expected) in
            [(9_999, Next::GoesOn), (10_000, Next::Ask), (30_000, Next::End(Ended::Expired))]
        {
            assert_eq!(next(&lease, now_ms, 1_000), expected, "at {now_ms}");
        }
        // What its policy wants, until when it may be read, what is done, and how long it then lasts.
        for (wanted_ms, usable_until_ms, expected, left_ms) in [
            (None, u64::MAX, Next::End(Ended::Released), 20_000),
            (Some(50_000), u64::MAX, Next::HoldOn(50_000), 50_000),
            (Some(5_000), u64::MAX, Next::HoldOn(5_000), 5_000),
            (Some(50_000), 35_000, Next::HoldOn(25_000), 25_000),
            (Some(1_000), u64::MAX, Next::End(Ended::Expired), 1_000),
            (Some(50_000), 11_000, Next::End(Ended::Expired), 1_000),
            (Some(50_000), 9_000, Next::End(Ended::Expired), 0),
        ] {
            let mut lease = lease;
            let done = answered(&mut lease, wanted_ms, usable_until_ms, 10_000, 1_000);
            assert_eq!((done, lease.left_ms(10_000)), (expected, left_ms), "{wanted_ms:?} {usable_until_ms}");
        }
        // Too long for one grant.
        let long = Lease::new(Keep { ttl_ms: 600_500, heartbeat_ms: None }, 0);
        assert_eq!(next(&long, 590_000, 1_000), Next::HoldOn(10_500));
        assert_eq!(next(&long, 599_500, 1_000), Next::End(Ended::Expired), "nobody would begin to read it");
    }
}
