//! An abort, wherever it strikes: the engines are told once, the blocks come back once, and nothing is aborted twice.

use sluice_transfer::protocol::{Action, Body, Event, Message, Outcome, Place, Reason, Registration, Verb};

use crate::pair::{ID, Pair, Side, attempt, blocks, new_hold, new_sink};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    BeforeRegistration,
    Registered,
    MidTransfer,
    AfterTheEnd,
}

fn abort(verb: Verb, when: When, by: Side, outcome: Outcome) {
    let case = format!("{verb:?}, {when:?}, by {by:?}, then {outcome:?}");
    let mut pair = Pair::new();
    if when == When::BeforeRegistration {
        // The registration is under way when the abort strikes, and arrives after it.
        pair.hold(new_hold(ID));
        pair.connected = false;
    }
    pair.receive(new_sink(verb, 1));
    pair.connected = true;
    if when != When::BeforeRegistration {
        pair.hold(new_hold(ID));
    }
    if matches!(when, When::MidTransfer | When::AfterTheEnd) {
        pair.give(Side::Producer, Event::Filled(ID));
        pair.deliver();
        pair.end_one(Outcome::Done);
    }
    if when == When::AfterTheEnd {
        pair.end_all();
        assert!(pair.is_at_rest(), "{case}");
    }
    for _ in 0..2 {
        match by {
            Side::Consumer => pair.give(Side::Consumer, Event::Cancel(attempt(1))),
            Side::Producer => pair.give(Side::Producer, Event::Release(ID)),
        }
        pair.deliver();
    }
    let back = |pair: &Pair, side, first| {
        let freed = Action::Freed { place: Place::Blocks, blocks: blocks(first) };
        pair.count(side, |action| *action == freed)
    };
    if when == When::MidTransfer && verb == Verb::Write {
        assert_eq!(back(&pair, Side::Consumer, 100), 0, "{case}: writes are under way");
    }
    while !pair.posts.is_empty() {
        pair.end_one(outcome);
    }
    for _ in 0..4 {
        pair.pass(30_000);
    }
    let failed = |action: &Action| matches!(action, Action::Failed { .. });
    let completed = |action: &Action| matches!(action, Action::Completed(_));
    let ended = |action: &Action| matches!(action, Action::HoldEnded { .. });
    let over = when == When::AfterTheEnd;
    assert_eq!(pair.count(Side::Consumer, failed), usize::from(!over), "{case}");
    assert_eq!(pair.count(Side::Consumer, completed), usize::from(over), "{case}");
    assert_eq!(pair.count(Side::Producer, ended), 1, "{case}");
    assert_eq!(back(&pair, Side::Producer, 0), 1, "{case}: the producer's blocks");
    assert_eq!(back(&pair, Side::Consumer, 100), usize::from(!over), "{case}: the consumer's blocks");
    assert!(pair.is_at_rest(), "{case}");
}

#[test]
fn aborts_strike_anywhere() {
    for verb in [Verb::Read, Verb::Write] {
        for when in [When::BeforeRegistration, When::Registered, When::MidTransfer, When::AfterTheEnd] {
            for by in [Side::Producer, Side::Consumer] {
                for outcome in [Outcome::Done, Outcome::Failed] {
                    abort(verb, when, by, outcome);
                }
            }
        }
    }
}

#[test]
fn a_registration_behind_its_own_abort_begins_nothing() {
    let mut pair = Pair::new();
    pair.hold(new_hold(ID));
    pair.give(Side::Producer, Event::Filled(ID));
    let say = |pair: &mut Pair, body| {
        let message = Message::Transfer(attempt(1), body);
        pair.give(Side::Producer, Event::Message { from: Side::Consumer.peer(), message });
    };
    let sink = new_sink(Verb::Write, 1);
    say(&mut pair, Body::Abort(Reason::Cancelled));
    say(
        &mut pair,
        Body::Register(Registration {
            verb: sink.verb,
            direction: sink.direction,
            grid: sink.grid,
            wanted: sink.wanted,
            key: sink.feeds[0].key,
            links: sink.feeds[0].links.clone(),
            landing: sink.blocks,
            left_ms: 5_000,
        }),
    );
    assert!(pair.posts.is_empty() && pair.producer.sources().is_empty());
}

#[test]
fn a_new_epoch_goes_on_while_the_old_one_drains() {
    let mut pair = Pair::new();
    pair.hold(new_hold(ID));
    pair.receive(new_sink(Verb::Write, 1));
    pair.give(Side::Producer, Event::Filled(ID));
    pair.receive(new_sink(Verb::Write, 2));
    let (old, new): (Vec<_>, Vec<_>) =
        pair.posts.drain(..).partition(|(_, post)| post.op.attempt == attempt(1));
    assert_eq!((old.len(), new.len()), (4, 4));
    pair.posts = new;
    pair.end_all();
    let completed = Action::Completed(attempt(2));
    assert_eq!(pair.count(Side::Consumer, |action| *action == completed), 1);
    let freed = |pair: &Pair| pair.count(Side::Consumer, |action| matches!(action, Action::Freed { .. }));
    let held = Action::Freed { place: Place::Blocks, blocks: blocks(0) };
    assert_eq!(freed(&pair), 0, "the old epoch's writes may still land");
    assert_eq!(pair.count(Side::Producer, |action| *action == held), 0, "and they still read");
    pair.posts = old;
    pair.end_all();
    assert_eq!(freed(&pair), 1);
    assert!(pair.is_at_rest());
}
