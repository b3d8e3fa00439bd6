//! The four flows, registration and readiness in either order, ranks, staging, and peers that are not there.

use sluice_transfer::protocol::{
    Action, Event, Grid, HoldEnd, NewSink, Outcome, Place, Rank, Reason, Rect, Verb,
};

use crate::pair::{ID, KEY, Pair, Side, attempt, blocks, links, new_hold, new_sink};

fn completed(pair: &Pair) -> usize {
    pair.count(Side::Consumer, |action| matches!(action, Action::Completed(_)))
}

fn delivered(pair: &Pair) -> usize {
    pair.count(Side::Producer, |a| matches!(a, Action::HoldEnded { end: HoldEnd::Delivered, .. }))
}

/// What happens in which order until it is delivered.
#[test]
fn registration_and_readiness_come_in_either_order() {
    #[derive(Clone, Copy, Debug)]
    enum Do {
        Hold,
        Ready,
        Filled,
        Receive,
    }
    use Do::{Filled, Hold, Ready, Receive};
    let orders = [
        [Receive, Hold, Ready, Filled],
        [Hold, Receive, Ready, Filled],
        [Hold, Ready, Receive, Filled],
        [Hold, Ready, Filled, Receive],
        [Hold, Filled, Ready, Receive],
    ];
    for verb in [Verb::Read, Verb::Write] {
        for order in orders {
            let mut pair = Pair::new();
            let layer = Rect { first_layer: 0, end_layer: 1, first: 0, end: 4 };
            for step in order {
                assert_eq!(completed(&pair), 0, "{verb:?} {order:?}");
                match step {
                    Hold => pair.hold(new_hold(ID)),
                    Ready => (0..4).for_each(|rank| {
                        pair.give(Side::Producer, Event::Ready { id: ID, rank: Rank(rank), rect: layer })
                    }),
                    Filled => pair.give(Side::Producer, Event::Filled(ID)),
                    Receive => pair.receive(new_sink(verb, 1)),
                }
                pair.deliver();
                pair.end_all();
            }
            assert_eq!((completed(&pair), delivered(&pair)), (1, 1), "{verb:?} {order:?}");
            assert!(pair.is_at_rest(), "{verb:?} {order:?}");
            let freed = Action::Freed { place: Place::Blocks, blocks: blocks(0) };
            assert_eq!(pair.count(Side::Producer, |action| *action == freed), 1);
        }
    }
}

#[test]
fn a_layer_is_told_when_the_last_rank_has_brought_it() {
    let layer = Rect { first_layer: 1, end_layer: 2, first: 0, end: 4 };
    for late in 0..4 {
        let mut pair = Pair::new();
        pair.receive(new_sink(Verb::Write, 1));
        pair.hold(new_hold(ID));
        let arrived = |pair: &Pair| {
            let told = Action::Arrived { attempt: attempt(1), rect: layer };
            pair.count(Side::Consumer, |action| *action == told)
        };
        for rank in (0..4).filter(|rank| *rank != late).chain([late]) {
            assert_eq!(arrived(&pair), 0);
            pair.give(Side::Producer, Event::Ready { id: ID, rank: Rank(rank), rect: layer });
            pair.end_all();
        }
        assert_eq!(arrived(&pair), 1, "rank {late} last");
        assert_eq!(completed(&pair), 0);
    }
}

#[test]
fn ranks_may_be_split_either_way() {
    for (from, to) in [(4, 2), (2, 4), (1, 1), (4, 4), (1, 4)] {
        for verb in [Verb::Read, Verb::Write] {
            let mut pair = Pair::new();
            let mut sink = new_sink(verb, 1);
            sink.feeds[0].links = links(from, to);
            pair.receive(sink);
            pair.hold(new_hold(ID));
            pair.give(Side::Producer, Event::Filled(ID));
            pair.deliver();
            assert_eq!(pair.posts.len(), usize::from(from.max(to)), "one operation for each link");
            pair.end_all();
            assert_eq!(completed(&pair), 1);
        }
    }
}

#[test]
fn what_does_not_fit_together_is_refused_at_once() {
    type Bend = fn(&mut NewSink);
    let bends: [(&str, Bend); 3] = [
        ("layers", |sink| sink.grid = Grid { layers: 2, ..sink.grid }),
        ("positions", |sink| sink.grid = Grid { positions: 3, ..sink.grid }),
        ("ranks", |sink| sink.feeds[0].links = links(8, 2)),
    ];
    for (what, bend) in bends {
        let mut pair = Pair::new();
        pair.hold(new_hold(ID));
        let mut sink = new_sink(Verb::Write, 1);
        bend(&mut sink);
        sink.wanted = sink.grid.whole();
        pair.receive(sink);
        let failed = Action::Failed { attempt: attempt(1), reason: Reason::Incompatible };
        assert_eq!(pair.count(Side::Consumer, |action| *action == failed), 1, "{what}");
        assert_eq!(pair.producer.holds().len(), 1, "the hold is for somebody who fits");
    }
}

#[test]
fn a_producer_that_cannot_be_reached_costs_a_deadline_and_no_block() {
    let mut pair = Pair::new();
    pair.connected = false;
    pair.receive(new_sink(Verb::Write, 1));
    pair.pass(1_999);
    assert_eq!(pair.consumer.sinks().len(), 1);
    pair.give(Side::Consumer, Event::Expect { attempt: attempt(1), within_ms: 0 });
    pair.pass(0);
    let failed = Action::Failed { attempt: attempt(1), reason: Reason::NoFirstByte };
    assert_eq!(pair.count(Side::Consumer, |action| *action == failed), 1);
    let freed = |pair: &Pair| pair.count(Side::Consumer, |action| matches!(action, Action::Freed { .. }));
    // No time ends quarantine. What ends it is that the endpoint is closed, and that is asked for.
    for _ in 0..50 {
        pair.pass(60_000);
        assert_eq!(freed(&pair), 0);
    }
    let close = Action::CloseEndpoint(Side::Producer.peer());
    assert!(pair.count(Side::Consumer, |action| *action == close) > 0);
    pair.give(Side::Consumer, Event::EndpointClosed { peer: Side::Producer.peer(), key: KEY });
    assert_eq!(freed(&pair), 1);
    assert!(pair.is_at_rest());
}

#[test]
fn staged_blocks_are_written_by_ourselves_alone() {
    let mut pair = Pair::new();
    let mut sink = new_sink(Verb::Write, 1);
    sink.staging = Some(blocks(900));
    pair.receive(sink);
    pair.hold(new_hold(ID));
    pair.give(Side::Producer, Event::Filled(ID));
    for _ in 0..4 {
        let written = pair.end_one(Outcome::Done);
        assert_eq!(written.sink, blocks(900), "what a peer writes goes to staging");
    }
    assert_eq!((completed(&pair), pair.posts.len()), (0, 4));
    for (_, copy) in pair.posts.clone() {
        assert_eq!((&copy.source, &copy.sink), (&blocks(900), &blocks(100)));
        pair.copied(copy.op);
    }
    assert_eq!(completed(&pair), 1);
    let slots = Action::Freed { place: Place::Staging, blocks: blocks(900) };
    assert_eq!(pair.count(Side::Consumer, |action| *action == slots), 1);
}
