//! What becomes of operations and their parts.

use std::sync::Arc;

use super::jobs::{Job, JobId, Jobs, PartEnd};
use super::metrics::Flow;
use super::work::{Place, Work};
use crate::fabric::{PeerId, Ticket};
use crate::layout::{Element, Geometry, HeadOrder, KvLayout, Order, Pair, Planes};
use crate::protocol::Extent;
use crate::protocol::{Attempt, Direction, EngineId, Epoch, Key, Op, Outcome, Peer, Rect, TransferId, Verb};

const KEY: Key = Key(3);
const ATTEMPT: Attempt = Attempt { id: TransferId(1), epoch: Epoch(1) };

fn peer(engine: u128) -> Peer {
    Peer { engine: EngineId(engine), incarnation: 1 }
}

fn id(number: u32) -> JobId {
    (peer(1), Op { attempt: ATTEMPT, number })
}

fn job(key: Key, parts: u32) -> Job {
    let layout = KvLayout {
        blocks: 8,
        block_tokens: 4,
        layers: 1,
        planes: Planes::Latent,
        kv_heads: 1,
        head_dim: 4,
        element: Element::Int8,
        tp_size: 1,
        order: Order::LayerPlaneBlock,
        head_order: HeadOrder::TokensOutermost,
    };
    let side = Geometry::new(layout).unwrap();
    let pair = Arc::new(Pair::new(side, side).unwrap());
    let place = Arc::new(Place { blocks: (0..8).collect(), first_token: 0 });
    let extent = Extent { first_token: 0, end_token: 32, position_tokens: 4 };
    let left = (0..parts).map(|at| Rect { first: at, end: at + 1, first_layer: 0, end_layer: 1 }).collect();
    let work = Work { extent, link: pair.links()[0], source: Arc::clone(&place), sink: place, left };
    let (verb, direction) = (Verb::Write, Direction::PrefillToDecode);
    let flow = Flow { source: peer(1), sink: peer(2), verb, direction };
    Job { flow, key, fabric_peer: PeerId(6), pair, work, under_way: 0, failed: false }
}

/// Posts the next part of whoever has a turn.
fn post(jobs: &mut Jobs) -> Option<(JobId, Ticket)> {
    let (id, job) = jobs.next()?;
    job.work.left.pop();
    let ticket = jobs.ticket();
    jobs.posted(id, ticket, 16);
    Some((id, ticket))
}

fn outcome(end: Option<PartEnd>) -> Option<Outcome> {
    end.and_then(|end| end.over).map(|over| over.outcome)
}

#[test]
fn operations_take_turns_by_parts() {
    let mut jobs = Jobs::default();
    jobs.add(id(0), job(KEY, 3));
    jobs.add(id(1), job(KEY, 1));
    let order: Vec<_> = std::iter::from_fn(|| post(&mut jobs).map(|((_, op), _)| op.number)).collect();
    assert_eq!(order, [0, 1, 0, 0]);
    assert_eq!((jobs.under_way(), jobs.have_turns()), (4, false));
}

#[test]
fn an_operation_is_over_with_its_last_part() {
    let mut jobs = Jobs::default();
    for (failed, expected) in [(None, Outcome::Done), (Some(0), Outcome::Failed), (Some(2), Outcome::Failed)]
    {
        jobs.add(id(0), job(KEY, 3));
        let tickets: Vec<_> = std::iter::from_fn(|| post(&mut jobs).map(|(_, ticket)| ticket)).collect();
        let ends: Vec<_> = tickets
            .iter()
            .enumerate()
            .map(|(at, ticket)| outcome(jobs.ended(*ticket, Some(at) != failed)))
            .collect();
        assert_eq!(ends, [None, None, Some(expected)]);
        assert!(jobs.ended(tickets[0], true).is_none(), "a part ends once");
    }
}

#[test]
fn a_cancelled_operation_is_over_when_its_parts_are() {
    let mut jobs = Jobs::default();
    (0..3).for_each(|number| jobs.add(id(number), job(KEY, 2)));
    let other = (peer(2), Op { attempt: ATTEMPT, number: 0 });
    jobs.add(other, job(KEY, 1));
    let (_, under_way) = post(&mut jobs).unwrap();
    let over = jobs.cancel(peer(1), ATTEMPT);
    assert_eq!(over.iter().map(|over| over.id).collect::<Vec<_>>(), [id(1), id(2)]);
    assert!(over.iter().all(|over| over.outcome == Outcome::Failed), "they were never posted");
    assert_eq!(outcome(jobs.ended(under_way, true)), Some(Outcome::Failed), "not all of it was");
    assert_eq!(post(&mut jobs).map(|(id, _)| id), Some(other), "another engine has its own");
    assert_eq!(post(&mut jobs), None);
}

#[test]
fn what_may_land_late_is_over_with_its_endpoint() {
    let mut jobs = Jobs::default();
    jobs.add(id(0), job(KEY, 3));
    jobs.add(id(1), job(Key(4), 1));
    let (_, first) = post(&mut jobs).unwrap();
    let (_, other) = post(&mut jobs).unwrap();
    let (_, second) = post(&mut jobs).unwrap();
    assert!(jobs.lingers(first).is_some());
    assert_eq!(post(&mut jobs), None, "what is left of it is not posted");
    assert_eq!(outcome(jobs.ended(second, true)), None, "the first part may still land");
    let over = jobs.closed(KEY);
    assert_eq!(
        over.iter().map(|over| (over.id, over.outcome)).collect::<Vec<_>>(),
        [(id(0), Outcome::Failed)]
    );
    assert!(jobs.ended(first, false).is_none());
    assert_eq!(outcome(jobs.ended(other, true)), Some(Outcome::Done), "it went by another endpoint");
    assert_eq!(jobs.under_way(), 0);
}
