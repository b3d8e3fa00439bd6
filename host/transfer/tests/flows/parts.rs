//! Parts of a hold: what is wanted comes, nothing else is said or moved, and the hold is delivered by it.

use sluice_transfer::protocol::limits::Limits;
use sluice_transfer::protocol::{
    Action, Body, Direction, End, Event, HoldEnd, Link, Message, NewSink, Outcome, Place, Rank, Reason, Rect,
    Refused, Region, Registration, Transfers, Verb,
};

use crate::pair::{GRID, ID, Pair, Side, attempt, blocks, links, new_hold, new_sink};

const fn positions(first: u32, end: u32) -> Rect {
    Rect { first, end, first_layer: 0, end_layer: GRID.layers }
}

/// The whole, a head, a tail, a middle, and the last position alone.
const PARTS: [Rect; 5] =
    [positions(0, 4), positions(0, 1), positions(1, 4), positions(1, 3), positions(3, 4)];

const LINKS: u64 = 4;

fn part_sink(verb: Verb, wanted: Rect) -> NewSink {
    let blocks = blocks(100)[..(wanted.end - wanted.first) as usize].into();
    NewSink { wanted, blocks, ..new_sink(verb, 1) }
}

/// Computes so many layers one by one, then the rest.
fn fill(pair: &mut Pair, layers: u16) {
    for layer in 0..layers {
        let rect = Rect { first_layer: layer, end_layer: layer + 1, ..GRID.whole() };
        (0..4).for_each(|rank| pair.give(Side::Producer, Event::Ready { id: ID, rank: Rank(rank), rect }));
        pair.deliver();
    }
    pair.give(Side::Producer, Event::Filled(ID));
    pair.deliver();
}

/// All that an attempt moved, link by link, each cell once.
fn assert_moved(moved: &[(Link, Rect)], wanted: Rect, case: &str) {
    for link in links(4, 2) {
        let mut region = Region::default();
        for (_, rect) in moved.iter().filter(|(of, _)| *of == link) {
            assert_eq!(region.insert(*rect), Ok(vec![*rect]), "{case}: moved again");
        }
        assert_eq!(region.rects(), [wanted], "{case}: {link:?}");
    }
}

#[test]
fn a_part_comes_in_every_way_and_delivers_its_hold() {
    for (verb, staged) in [(Verb::Read, false), (Verb::Write, false), (Verb::Write, true)] {
        for direction in [Direction::PrefillToDecode, Direction::DecodeToPrefill] {
            for wanted in PARTS {
                for (receive_first, layers) in [(true, 0), (true, 2), (true, 3), (false, 0), (false, 3)] {
                    let case = format!("{verb:?} {staged} {direction:?} {wanted:?} {receive_first} {layers}");
                    let sink = NewSink { direction, ..part_sink(verb, wanted) };
                    let slots = staged.then(|| blocks(900)[..sink.blocks.len()].into());
                    let mut pair = Pair::new();
                    pair.hold(new_hold(ID));
                    if receive_first {
                        pair.receive(NewSink { staging: slots.clone(), ..sink.clone() });
                        fill(&mut pair, layers);
                    } else {
                        fill(&mut pair, layers);
                        pair.receive(NewSink { staging: slots.clone(), ..sink.clone() });
                    }
                    let (mut moved, mut copied) = (Vec::new(), Vec::new());
                    while let Some((_, post)) = pair.posts.first().cloned() {
                        if post.source == blocks(0) {
                            pair.end_one(Outcome::Done);
                            moved.push((post.link, post.rect));
                        } else {
                            pair.copied(post.op);
                            copied.push((post.link, post.rect));
                        }
                    }
                    assert_moved(&moved, wanted, &case);
                    if staged {
                        assert_moved(&copied, wanted, &case);
                    }
                    let mut arrived = Region::default();
                    for (_, action) in &pair.told {
                        if let Action::Arrived { rect, .. } = action {
                            assert_eq!(arrived.insert(*rect), Ok(vec![*rect]), "{case}: told again");
                        }
                    }
                    assert_eq!(arrived.rects(), [wanted], "{case}");
                    let told = |side, what: Action| assert_eq!(pair.count(side, |a| *a == what), 1, "{case}");
                    told(Side::Consumer, Action::Completed(attempt(1)));
                    told(Side::Producer, Action::HoldEnded { id: ID, end: HoldEnd::Delivered });
                    told(Side::Producer, Action::Freed { place: Place::Blocks, blocks: blocks(0) });
                    assert!(pair.is_at_rest(), "{case}");
                }
            }
        }
    }
}

/// What is computed beside a part begins nothing.
#[test]
fn what_is_not_wanted_is_not_waited_for() {
    for verb in [Verb::Read, Verb::Write] {
        let mut pair = Pair::new();
        pair.receive(part_sink(verb, positions(2, 4)));
        pair.hold(new_hold(ID));
        let ready = |pair: &mut Pair, rect| {
            (0..4)
                .for_each(|rank| pair.give(Side::Producer, Event::Ready { id: ID, rank: Rank(rank), rect }));
            pair.deliver();
        };
        ready(&mut pair, positions(0, 2));
        assert_eq!(pair.posts.len(), 0, "{verb:?}");
        ready(&mut pair, positions(1, 4));
        pair.end_all();
        // The prefill is not over, and nobody waits for the rest of it.
        let completed = Action::Completed(attempt(1));
        assert_eq!(pair.count(Side::Consumer, |action| *action == completed), 1, "{verb:?}");
        assert!(pair.is_at_rest(), "{verb:?}");
    }
}

#[test]
fn a_part_that_is_none_is_refused_by_either_side() {
    let whole = GRID.whole();
    let parts = [
        Rect { end: 0, ..whole },
        Rect { first: 4, ..whole },
        Rect { end: 5, ..whole },
        Rect { first: 3, end: 2, ..whole },
        Rect { first_layer: 1, ..whole },
        Rect { end_layer: 2, ..whole },
        Rect { end_layer: 4, ..whole },
    ];
    for wanted in parts {
        let mut consumer = Transfers::new(Limits::default());
        let sink = NewSink { wanted, ..new_sink(Verb::Read, 1) };
        assert_eq!(consumer.receive(sink, 0, &mut Vec::new()), Err(Refused::Invalid), "{wanted:?}");
        for verb in [Verb::Read, Verb::Write] {
            let mut pair = Pair::new();
            pair.hold(new_hold(ID));
            pair.give(Side::Producer, Event::Filled(ID));
            let sink = new_sink(verb, 1);
            let registration = Registration {
                verb,
                direction: sink.direction,
                grid: sink.grid,
                wanted,
                key: sink.feeds[0].key,
                links: sink.feeds[0].links.clone(),
                landing: sink.blocks,
                left_ms: 5_000,
            };
            let message = Message::Transfer(attempt(1), Body::Register(registration));
            let mut out = Vec::new();
            let event = Event::Message { from: Side::Consumer.peer(), message };
            pair.producer.handle(event, pair.now_ms, &crate::pair::Always(true), &mut out);
            let refusal = Body::Ended(End::Aborted(Reason::Incompatible));
            let message = Message::Transfer(attempt(1), refusal);
            let refused = Action::Send { to: Side::Consumer.peer(), message };
            assert!(out.contains(&refused), "{wanted:?}: {out:?}");
            assert!(!out.iter().any(|action| matches!(action, Action::Post(_))), "{wanted:?}");
            assert_eq!(pair.producer.holds().len(), 1, "the hold is for somebody who means it");
        }
    }
}

/// A report of more than was asked for is of another transfer: nothing of it counts.
#[test]
fn reports_beyond_what_is_wanted_end_the_transfer() {
    let link = Link { from: Rank(0), to: Rank(0) };
    let (wanted, cells) = (positions(1, 3), 6);
    let cases = [
        (Verb::Write, Body::Written { link, rect: positions(0, 1) }),
        (Verb::Write, Body::Written { link, rect: positions(0, 2) }),
        (Verb::Write, Body::Written { link, rect: positions(2, 4) }),
        (Verb::Write, Body::Written { link, rect: GRID.whole() }),
        (Verb::Write, Body::Ended(End::Complete { cells: GRID.whole().cells() * LINKS })),
        (Verb::Write, Body::Ended(End::Complete { cells: cells * LINKS - 1 })),
        (Verb::Read, Body::Ready { rank: Rank(0), rect: GRID.whole() }),
        (Verb::Read, Body::Ready { rank: Rank(0), rect: positions(3, 4) }),
    ];
    let told = |verb, body: &Body| {
        let mut pair = Pair::new();
        pair.receive(part_sink(verb, wanted));
        let message = Message::Transfer(attempt(1), body.clone());
        pair.give(Side::Consumer, Event::Message { from: Side::Producer.peer(), message });
        pair.told
    };
    for (verb, body) in &cases {
        let failed = Action::Failed { attempt: attempt(1), reason: Reason::BadReport };
        let told = told(*verb, body);
        assert!(told.iter().any(|(_, action)| *action == failed), "{verb:?} {body:?}");
        assert!(
            !told.iter().any(|(_, action)| matches!(action, Action::Arrived { .. })),
            "{verb:?} {body:?}"
        );
    }
    let right = told(Verb::Write, &Body::Ended(End::Complete { cells: cells * LINKS }));
    assert!(right.contains(&(Side::Consumer, Action::Completed(attempt(1)))), "{right:?}");
}

/// A READ that is said to have gone beyond what was asked for is not vouched for.
#[test]
fn a_confirmation_is_of_what_was_wanted() {
    for (rect, vouched) in [(positions(1, 3), true), (positions(1, 2), true), (positions(0, 2), false)] {
        let mut pair = Pair::new();
        pair.hold(new_hold(ID));
        pair.give(Side::Producer, Event::Filled(ID));
        pair.receive(part_sink(Verb::Read, positions(1, 3)));
        let message = Message::Transfer(attempt(1), Body::Confirm { number: 0, rect });
        let mut out = Vec::new();
        let event = Event::Message { from: Side::Consumer.peer(), message };
        pair.producer.handle(event, pair.now_ms, &crate::pair::Always(true), &mut out);
        let body = Body::Confirmed { number: 0, held: vouched };
        let answer = Action::Send { to: Side::Consumer.peer(), message: Message::Transfer(attempt(1), body) };
        assert_eq!(out, [answer], "{rect:?}");
    }
}
