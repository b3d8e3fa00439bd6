//! Peers that say anything: no panic, no bound broken, and no block freed twice.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use sluice_transfer::protocol::limits::Limits;
use sluice_transfer::protocol::{
    Action, Attempt, Body, Direction, End, Epoch, Event, Grid, Key, Lease, Link, Message, NewHold, NewSink,
    Op, Outcome, Place, Rank, Reason, Rect, Registration, TransferId, Transfers, Verb,
};

use crate::pair::{Always, GRID, Side, blocks, new_hold, new_sink};

const LIMITS: Limits = Limits { holds: 3, sources: 3, sinks: 3, closed: 6 };

fn attempt() -> impl Strategy<Value = Attempt> {
    (0..3u128, 0..3u32).prop_map(|(id, epoch)| Attempt { id: TransferId(id), epoch: Epoch(epoch) })
}

fn rect() -> impl Strategy<Value = Rect> {
    prop_oneof![
        Just(GRID.whole()),
        (0..6u32, 0..6u32, 0..4u16, 0..4u16).prop_map(|(first, end, first_layer, end_layer)| Rect {
            first,
            end,
            first_layer,
            end_layer
        }),
        any::<(u32, u32)>().prop_map(|(first, end)| Rect { first, end, first_layer: 0, end_layer: u16::MAX }),
    ]
}

fn link() -> impl Strategy<Value = Link> {
    (0..5u16, 0..3u16).prop_map(|(from, to)| Link { from: Rank(from), to: Rank(to) })
}

/// Mostly a part that there is.
fn wanted() -> impl Strategy<Value = Rect> {
    prop_oneof![2 => (0..3u32).prop_map(|first| Rect { first, ..GRID.whole() }), 1 => rect()]
}

fn registration() -> impl Strategy<Value = Registration> {
    let grid = prop_oneof![3 => Just(GRID), 1 => any::<(u32, u16)>().prop_map(|(positions, layers)| Grid { positions, layers })];
    let verb = prop::sample::select(vec![Verb::Read, Verb::Write]);
    (verb, grid, wanted(), vec(link(), 0..20), any::<u64>()).prop_map(
        |(verb, grid, wanted, links, left_ms)| Registration {
            verb,
            direction: Direction::DecodeToPrefill,
            grid,
            wanted,
            key: Key(1),
            links,
            landing: blocks(500),
            left_ms,
        },
    )
}

fn body() -> impl Strategy<Value = Body> {
    let reason = Reason::Cancelled;
    prop_oneof![
        registration().prop_map(Body::Register),
        Just(Body::Ask),
        Just(Body::Abort(reason)),
        (0..4u32, rect()).prop_map(|(number, rect)| Body::Confirm { number, rect }),
        Just(Body::Done),
        Just(Body::Accepted),
        any::<u64>().prop_map(|left_ms| Body::Offer { blocks: blocks(700), left_ms }),
        (0..5u16, rect()).prop_map(|(rank, rect)| Body::Ready { rank: Rank(rank), rect }),
        (link(), rect()).prop_map(|(link, rect)| Body::Written { link, rect }),
        (0..4u32, any::<bool>()).prop_map(|(number, held)| Body::Confirmed { number, held }),
        prop::sample::select(vec![
            End::Complete { cells: 48 },
            End::Complete { cells: 36 },
            End::Aborted(reason),
            End::Unsure(reason)
        ])
        .prop_map(Body::Ended),
    ]
}

#[derive(Clone, Debug)]
enum Input {
    Hold(u128),
    Receive(Attempt, Verb, Rect, bool),
    Renew(u128, Option<u64>),
    Event(Event),
    Wait(u64),
}

fn input() -> impl Strategy<Value = Input> {
    let lease = prop::sample::select(vec![Lease::Renew, Lease::Release, Lease::Left { left_ms: 3 }]);
    let peer = || prop::sample::select(vec![Side::Producer.peer(), Side::Consumer.peer()]);
    let op = || (attempt(), 0..6u32).prop_map(|(attempt, number)| Op { attempt, number });
    let outcome = prop::sample::select(vec![Outcome::Done, Outcome::Failed]);
    let event = prop_oneof![
        8 => (peer(), attempt(), body()).prop_map(|(from, attempt, body)| Event::Message { from, message: Message::Transfer(attempt, body) }),
        1 => (peer(), 0..3u128, lease).prop_map(|(from, id, lease)| Event::Message { from, message: Message::Hold(TransferId(id), lease) }),
        2 => (0..3u128, 0..5u16, rect()).prop_map(|(id, rank, rect)| Event::Ready { id: TransferId(id), rank: Rank(rank), rect }),
        1 => (0..3u128).prop_map(|id| Event::Filled(TransferId(id))),
        1 => (0..3u128).prop_map(|id| Event::Release(TransferId(id))),
        1 => attempt().prop_map(Event::Cancel),
        1 => (attempt(), any::<u64>()).prop_map(|(attempt, within_ms)| Event::Expect { attempt, within_ms }),
        4 => (op(), outcome).prop_map(|(op, outcome)| Event::Posted { op, outcome }),
        1 => op().prop_map(Event::Copied),
        1 => peer().prop_map(Event::PeerLost),
        1 => peer().prop_map(|peer| Event::EndpointClosed { peer, key: Key(1) }),
        1 => peer().prop_map(Event::ProcessGone),
        1 => Just(Event::EngineGone),
    ];
    prop_oneof![
        1 => (0..3u128).prop_map(Input::Hold),
        2 => (attempt(), prop::sample::select(vec![Verb::Read, Verb::Write]), wanted(), any::<bool>())
            .prop_map(|(attempt, verb, wanted, staged)| Input::Receive(attempt, verb, wanted, staged)),
        1 => (0..3u128, proptest::option::of(any::<u64>())).prop_map(|(id, for_ms)| Input::Renew(id, for_ms)),
        9 => event.prop_map(Input::Event),
        1 => (0..9_000u64).prop_map(Input::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]
    #[test]
    fn whatever_is_said_bounds_hold_and_nothing_is_freed_twice(inputs in vec(input(), 0..120)) {
        let mut owner = Transfers::new(LIMITS);
        let (mut now_ms, mut next) = (0, 1_000);
        // How often blocks that were given out came back, and which attempts were told to have ended.
        let (mut given, mut ended) = (BTreeMap::new(), BTreeSet::new());
        for input in inputs {
            let mut out = Vec::new();
            next += 100;
            match input {
                Input::Hold(id) => {
                    let spec = NewHold { blocks: blocks(next), ..new_hold(TransferId(id)) };
                    if owner.hold(spec, now_ms, &mut out).is_ok() {
                        given.insert(next, 0);
                    }
                }
                Input::Receive(attempt, verb, wanted, staged) => {
                    let staging = (staged && verb == Verb::Write).then(|| blocks(next + 50));
                    let spec = NewSink { attempt, wanted, blocks: blocks(next), staging: staging.clone(), ..new_sink(verb, 1) };
                    if owner.receive(spec, now_ms, &mut out).is_ok() {
                        given.insert(next, 0);
                        staging.into_iter().for_each(|_| { given.insert(next + 50, 0); });
                    }
                }
                Input::Event(event) => owner.handle(event, now_ms, &Always(true), &mut out),
                Input::Renew(id, for_ms) => drop(owner.renew(TransferId(id), for_ms, now_ms)),
                Input::Wait(ms) => now_ms += ms,
            }
            owner.handle(Event::Tick, now_ms, &Always(true), &mut out);
            prop_assert!(owner.next_due_ms().is_none_or(|due| due > now_ms));
            prop_assert!(owner.holds().len() <= LIMITS.holds && owner.sources().len() <= LIMITS.sources);
            prop_assert!(owner.sinks().len() <= LIMITS.sinks);
            prop_assert!(owner.remembered().0 <= LIMITS.closed && owner.remembered().1 <= LIMITS.closed);
            for action in out {
                match action {
                    Action::Freed { place: Place::Blocks | Place::Staging, blocks } => {
                        let times = given.get_mut(&blocks[0].index).expect("blocks that were given out");
                        *times += 1;
                        prop_assert_eq!(*times, 1);
                    }
                    Action::Completed(attempt) | Action::Failed { attempt, .. } => {
                        prop_assert!(ended.insert(attempt));
                    }
_ => {}
                }
            }
        }
    }
}
