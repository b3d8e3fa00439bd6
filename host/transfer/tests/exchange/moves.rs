//! The four flows, with real bytes.

use sluice_transfer::exchange::FlowFigures;
use sluice_transfer::fabric::{Fault, ShmSettings};
use sluice_transfer::protocol::{Direction, HoldEnd, Tokens, Verb};

use crate::world::World;

const FLOWS: [(Verb, Direction); 4] = [
    (Verb::Write, Direction::PrefillToDecode),
    (Verb::Read, Direction::PrefillToDecode),
    (Verb::Write, Direction::DecodeToPrefill),
    (Verb::Read, Direction::DecodeToPrefill),
];
/// Not a multiple of either block size.
const TOKENS: u32 = 200;
/// Bytes of a token, in all layers and on all ranks.
const TOKEN_BYTES: u64 = 4 * 2 * 8 * 8 * 2;

fn all_flows(mut world: World) {
    for (verb, direction) in FLOWS {
        for receive_first in [true, false] {
            world.transfer(verb, direction, TOKENS, receive_first);
        }
    }
    let figures = world.handle.figures();
    assert_eq!(figures.completed, 8);
    assert_eq!(figures.holds.get(&HoldEnd::Delivered), Some(&8));
    assert_eq!(figures.total().bytes, 8 * u64::from(TOKENS) * TOKEN_BYTES);
    assert_eq!(figures.flows.len(), 4);
    for (flow, figures) in &figures.flows {
        let FlowFigures { bytes, bytes_while_filling, failed, queued, .. } = *figures;
        assert_eq!((bytes, failed, queued), (2 * u64::from(TOKENS) * TOKEN_BYTES, 0, 0), "{flow:?}");
        assert_eq!(bytes_while_filling, bytes / 2, "the half that was received first hid behind the prefill");
        assert!(figures.coalescing().unwrap() >= 1.0);
    }
    assert_eq!(figures.failed.len(), 0);
}

#[test]
fn every_flow_moves_every_byte_step_by_step() {
    all_flows(World::stepped(|_| Fault::None));
}

#[test]
fn every_flow_moves_every_byte_with_threads() {
    all_flows(World::threaded(ShmSettings::default()));
}

#[test]
fn a_fabric_that_has_room_for_one_post_delays_and_loses_nothing() {
    all_flows(World::threaded(ShmSettings { max_posts: 1, ..ShmSettings::default() }));
}

#[test]
fn operations_that_end_in_any_order_make_up_the_whole() {
    let mut turn = 0;
    all_flows(World::stepped(move |_| {
        turn += 1;
        Fault::Delayed { polls: turn * 7 % 13 }
    }));
}

/// A head, a tail, a middle, one token, and the end that fills no position. None begins or ends with a block of either
/// side, so whole positions come, into blocks that have other tokens beside them.
const PARTS: [(u32, u32, u64); 5] =
    [(0, 40, 48), (130, TOKENS, 72), (50, 100, 64), (77, 78, 16), (193, 199, 8)];

fn parts_of_all_flows(mut world: World) {
    for (verb, direction) in FLOWS {
        for (first, end, _) in PARTS {
            for receive_first in [true, false] {
                world.transfer_part((verb, direction), TOKENS, Tokens { first, end }, receive_first);
            }
        }
    }
    let comes: u64 = PARTS.iter().map(|(_, _, comes)| comes).sum();
    let figures = world.handle.figures();
    assert_eq!(figures.holds.get(&HoldEnd::Delivered), Some(&40));
    assert_eq!(figures.total().bytes, 8 * comes * TOKEN_BYTES, "only what was wanted has moved");
    assert_eq!((figures.posts_refused, figures.failed.len()), (0, 0));
}

#[test]
fn a_part_of_every_flow_comes_and_no_byte_beside_it() {
    parts_of_all_flows(World::stepped(|_| Fault::None));
}

#[test]
fn a_part_of_every_flow_comes_with_threads() {
    parts_of_all_flows(World::threaded(ShmSettings::default()));
}
