//! Producers that report what cannot be: the transfer ends, nothing is counted, and no block comes back too soon.

use sluice_transfer::protocol::{Action, Body, End, Event, Link, Message, Peer, Rank, Reason, Rect, Verb};

use crate::pair::{GRID, ID, KEY, Pair, Side, attempt, new_hold, new_sink};

fn say(pair: &mut Pair, from: Peer, body: Body) {
    pair.give(Side::Consumer, Event::Message { from, message: Message::Transfer(attempt(1), body) });
}

#[test]
fn reports_that_cannot_be_end_the_transfer() {
    let link = Link { from: Rank(0), to: Rank(0) };
    let whole = GRID.whole();
    let cases = [
        (Verb::Write, Body::Written { link, rect: Rect { end: 5, ..whole } }),
        (Verb::Write, Body::Written { link, rect: Rect { end_layer: 4, ..whole } }),
        (Verb::Write, Body::Written { link, rect: Rect { end: 0, ..whole } }),
        (Verb::Write, Body::Written { link: Link { from: Rank(0), to: Rank(1) }, rect: whole }),
        (Verb::Write, Body::Ended(End::Complete { cells: 47 })),
        (Verb::Write, Body::Ended(End::Complete { cells: u64::MAX })),
        (Verb::Write, Body::Ready { rank: Rank(0), rect: whole }),
        (Verb::Read, Body::Ready { rank: Rank(0), rect: Rect { first: 4, end: 5, ..whole } }),
        (Verb::Read, Body::Written { link, rect: whole }),
        (Verb::Read, Body::Ended(End::Complete { cells: 48 })),
    ];
    for (verb, body) in cases {
        let mut pair = Pair::new();
        pair.receive(new_sink(verb, 1));
        say(&mut pair, Side::Producer.peer(), body.clone());
        let failed = Action::Failed { attempt: attempt(1), reason: Reason::BadReport };
        assert_eq!(pair.count(Side::Consumer, |action| *action == failed), 1, "{verb:?} {body:?}");
        assert_eq!(pair.count(Side::Consumer, |action| matches!(action, Action::Arrived { .. })), 0);
    }
}

#[test]
fn a_confirmation_of_a_read_that_is_not_over_counts_for_nothing() {
    let mut pair = Pair::new();
    pair.receive(new_sink(Verb::Read, 1));
    pair.hold(new_hold(ID));
    pair.give(Side::Producer, Event::Filled(ID));
    pair.deliver();
    for number in 0..8 {
        say(&mut pair, Side::Producer.peer(), Body::Confirmed { number, held: true });
    }
    assert_eq!(pair.count(Side::Consumer, |action| matches!(action, Action::Arrived { .. })), 0);
    pair.end_all();
    let completed = Action::Completed(attempt(1));
    assert_eq!(pair.count(Side::Consumer, |action| *action == completed), 1);
}

/// Only the life of the process that was registered with can say that its writes are over.
#[test]
fn another_life_of_a_process_speaks_for_nobody() {
    let mut pair = Pair::new();
    pair.connected = false;
    pair.receive(new_sink(Verb::Write, 1));
    pair.give(Side::Consumer, Event::Cancel(attempt(1)));
    let next = Peer { incarnation: 2, ..Side::Producer.peer() };
    let ended = Body::Ended(End::Aborted(Reason::Unknown));
    let freed = |pair: &Pair| pair.count(Side::Consumer, |action| matches!(action, Action::Freed { .. }));
    say(&mut pair, next, ended.clone());
    pair.give(Side::Consumer, Event::ProcessGone(next));
    pair.give(Side::Consumer, Event::EndpointClosed { peer: next, key: KEY });
    assert_eq!(freed(&pair), 0);
    say(&mut pair, Side::Producer.peer(), ended);
    assert_eq!(freed(&pair), 1);
}
