//! Holds: heartbeats, ends, and readers at the edge of both.

use proptest::prelude::*;
use sluice_transfer::protocol::limits::{Limits, MAX_WAIT_MS, READER_GRACE_MS};
use sluice_transfer::protocol::{
    Action, Event, HoldEnd, Lease, Message, NewHold, NewSink, Outcome, Reason, RenewRefused, TransferId,
    Transfers, Verb,
};

use crate::pair::{Always, ID, MARGIN_MS, Pair, Side, attempt, new_hold, new_sink};

#[test]
fn a_heartbeat_counts_while_the_lease_lasts() {
    let (ttl, margin) = (30_000, 1_000);
    let cases = [
        (true, 10, Ok(ttl - margin)),
        (true, ttl - 1, Ok(ttl - margin)),
        (true, ttl, Err(RenewRefused::Over)),
        (true, ttl + 5, Err(RenewRefused::Over)),
        (false, 10, Err(RenewRefused::Fixed)),
        (false, ttl, Err(RenewRefused::Over)),
    ];
    for (renewable, after, expected) in cases {
        for noticed in [false, true] {
            let mut pair = Pair::new();
            pair.hold(NewHold { renewable, ..new_hold(ID) });
            pair.give(Side::Producer, Event::Filled(ID));
            if noticed {
                pair.pass(after);
            } else {
                pair.now_ms += after;
            }
            let now_ms = pair.now_ms;
            assert_eq!(pair.producer.renew(ID, None, now_ms), expected, "{renewable} {after} {noticed}");
        }
    }
}

/// A heartbeat that names a time sets the lease to it, later or sooner; the next one without a time is of the hold's own.
#[test]
fn a_heartbeat_may_have_a_time_of_its_own() {
    let refused = |for_ms| Err(RenewRefused::Time { for_ms, margin_ms: MARGIN_MS });
    let cases = [
        (true, 5_000, Ok(4_000), 5_000),
        (true, MARGIN_MS + 1, Ok(1), MARGIN_MS + 1),
        (true, MAX_WAIT_MS, Ok(MAX_WAIT_MS - MARGIN_MS), MAX_WAIT_MS),
        (true, 0, refused(0), 29_000),
        (true, MARGIN_MS, refused(MARGIN_MS), 29_000),
        (true, MAX_WAIT_MS + 1, refused(MAX_WAIT_MS + 1), 29_000),
        (true, u64::MAX, refused(u64::MAX), 29_000),
        (false, 5_000, Err(RenewRefused::Fixed), 29_000),
        (false, 0, Err(RenewRefused::Fixed), 29_000),
    ];
    for (renewable, for_ms, expected, lasts_ms) in cases {
        for again in [false, true] {
            let mut pair = Pair::new();
            pair.hold(NewHold { renewable, ..new_hold(ID) });
            let now_ms = pair.now_ms;
            if renewable {
                // Before the prefill is over there is no lease: it will be the hold's own.
                let told = expected.map(|_| 29_000);
                assert_eq!(pair.producer.renew(ID, Some(for_ms), now_ms), told, "filling, {for_ms}");
            }
            pair.give(Side::Producer, Event::Filled(ID));
            pair.pass(1_000);
            let now_ms = pair.now_ms;
            assert_eq!(pair.producer.renew(ID, Some(for_ms), now_ms), expected, "{renewable} {for_ms}");
            let mut lasts_ms = lasts_ms;
            if again && renewable {
                assert_eq!(pair.producer.renew(ID, None, now_ms), Ok(29_000));
                lasts_ms = 30_000;
            }
            pair.pass(lasts_ms - 1);
            assert_eq!(pair.producer.holds()[&ID].end(), None, "{renewable} {for_ms} {again}");
            pair.pass(1);
            assert!(pair.is_at_rest(), "{renewable} {for_ms} {again}");
            let now_ms = pair.now_ms;
            assert_eq!(pair.producer.renew(ID, Some(for_ms), now_ms), Err(RenewRefused::Over));
        }
    }
}

#[test]
fn a_peer_renews_and_releases() {
    let mut pair = Pair::new();
    pair.hold(new_hold(ID));
    pair.give(Side::Producer, Event::Filled(ID));
    let say = |pair: &mut Pair, lease| {
        pair.give(
            Side::Producer,
            Event::Message { from: Side::Consumer.peer(), message: Message::Hold(ID, lease) },
        );
        pair.deliver();
    };
    for _ in 0..10 {
        pair.pass(29_000);
        say(&mut pair, Lease::Renew);
    }
    say(&mut pair, Lease::Release);
    say(&mut pair, Lease::Renew);
    let left = pair.told.iter().filter_map(|(_, action)| match action {
        Action::LeaseLeft { left_ms, .. } => Some(*left_ms),
        _ => None,
    });
    assert_eq!(left.collect::<Vec<_>>(), [[29_000; 10].as_slice(), &[0]].concat());
    assert!(pair.is_at_rest());
}

#[test]
fn no_reader_begins_within_the_margin_but_a_writer_may() {
    for (verb, ends) in [(Verb::Read, Some(Reason::LeaseTooShort)), (Verb::Write, None)] {
        let mut pair = Pair::new();
        pair.hold(new_hold(ID));
        pair.give(Side::Producer, Event::Filled(ID));
        pair.pass(29_500);
        pair.receive(new_sink(verb, 1));
        pair.end_all();
        let failed = pair.told.iter().find_map(|(_, action)| match action {
            Action::Failed { reason, .. } => Some(*reason),
            _ => None,
        });
        assert_eq!(failed, ends, "{verb:?}");
    }
}

/// A READ that is under way when its lease runs out.
#[test]
fn an_expired_lease_is_read_to_its_end_within_the_grace_and_never_after() {
    for (late_ms, current, counts) in [
        (READER_GRACE_MS - 1, true, true),
        (READER_GRACE_MS - 1, false, false),
        (READER_GRACE_MS, true, false),
        (READER_GRACE_MS + 1, true, false),
    ] {
        let mut pair = Pair::new();
        pair.hold(new_hold(ID));
        pair.give(Side::Producer, Event::Filled(ID));
        pair.pass(28_000);
        pair.receive(NewSink { first_byte_ms: 10_000, ..new_sink(Verb::Read, 1) });
        pair.pass(2_000);
        let expired = Action::HoldEnded { id: ID, end: HoldEnd::Expired };
        assert_eq!(pair.count(Side::Producer, |action| *action == expired), 1);
        pair.pass(late_ms);
        pair.current = current;
        pair.end_all();
        let completed = Action::Completed(attempt(1));
        let done = pair.count(Side::Consumer, |action| *action == completed);
        assert_eq!(done, usize::from(counts), "{late_ms} {current}");
        pair.pass(60_000);
        assert_eq!(pair.count(Side::Producer, |a| matches!(a, Action::HoldEnded { .. })), 1);
        assert!(pair.is_at_rest());
    }
}

#[test]
fn an_engine_that_is_gone_loses_its_holds_once() {
    let mut pair = Pair::new();
    pair.hold(new_hold(ID));
    pair.receive(new_sink(Verb::Write, 1));
    pair.give(Side::Producer, Event::Filled(ID));
    pair.end_one(Outcome::Done);
    pair.give(Side::Producer, Event::EngineGone);
    pair.give(Side::Producer, Event::EngineGone);
    pair.end_all();
    let lost = Action::HoldEnded { id: ID, end: HoldEnd::Lost };
    assert_eq!(pair.count(Side::Producer, |action| *action == lost), 1);
    let failed = Action::Failed { attempt: attempt(1), reason: Reason::HoldEnded(HoldEnd::Lost) };
    assert_eq!(pair.count(Side::Consumer, |action| *action == failed), 1);
    assert!(pair.is_at_rest());
}

proptest! {
    /// Whatever was renewed when, each hold whose time is over ends with the next tick, and no other.
    #[test]
    fn every_expired_hold_ends_whatever_was_renewed(
        ttls in proptest::collection::vec(1_001..9_000u64, 1..12),
        beats in proptest::collection::vec((0..12usize, 0..900u64, proptest::option::of(0..9_000u64)), 0..80),
    ) {
        let mut owner = Transfers::new(Limits::default());
        let (mut now_ms, mut out) = (0, Vec::new());
        let mut until = Vec::new();
        for (at, ttl_ms) in ttls.iter().enumerate() {
            let id = TransferId(at as u128);
            let spec = NewHold { ttl_ms: *ttl_ms, ..new_hold(id) };
            owner.hold(spec, now_ms, &mut out).unwrap();
            owner.handle(Event::Filled(id), now_ms, &Always(true), &mut out);
            until.push(*ttl_ms);
        }
        for (at, pause_ms, for_ms) in beats {
            now_ms += pause_ms;
            let at = at % ttls.len();
            let renewed = owner.renew(TransferId(at as u128), for_ms, now_ms).is_ok();
            let is_lease = for_ms.is_none_or(|for_ms| for_ms > MARGIN_MS);
            prop_assert_eq!(renewed, now_ms < until[at] && is_lease);
            if renewed {
                until[at] = now_ms + for_ms.unwrap_or(ttls[at]);
            }
            owner.handle(Event::Tick, now_ms, &Always(true), &mut out);
            let alive: Vec<_> = owner.holds().keys().map(|id| id.0 as usize).collect();
            let expected: Vec<_> = (0..ttls.len()).filter(|at| now_ms < until[*at]).collect();
            prop_assert_eq!(alive, expected);
        }
    }
}
