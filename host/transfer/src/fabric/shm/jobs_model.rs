//! The jobs under any order of handing out, giving back and closing.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::jobs::*;
use super::slices::SLICE_BYTES;
use crate::fabric::endpoint::Checked;
use crate::fabric::{Failure, PeerId, Post, RegionId, Ticket, Verb};
use crate::layout::ByteCopy;
use crate::memory::{HugePages, OutOfRange, Slab, Stores};

fn job(slab: &Arc<Slab>, peer: u64, ticket: u64, slices: u64) -> Job {
    let copy = ByteCopy { source_offset: 0, sink_offset: 0, len: SLICE_BYTES };
    let (local, remote, verb) = (RegionId(0), RegionId(0), Verb::Read);
    let copies = vec![copy; slices as usize];
    let post =
        Post { peer: PeerId(peer), ticket: Ticket(ticket), verb, local, remote, copies, runs_before: 0 };
    let memory = Checked { source: Arc::clone(slab), sink: Arc::clone(slab), bytes: slices * SLICE_BYTES };
    Job::new(post, memory, Stores::CACHED, Arc::default())
}

fn slab() -> Arc<Slab> {
    Arc::new(Slab::create(1, HugePages::FromKernelOnly).unwrap())
}

#[test]
fn a_short_job_waits_for_a_slice_of_a_long_one_and_not_for_its_length() {
    let (slab, mut jobs) = (slab(), Jobs::default());
    assert!(jobs.add(job(&slab, 1, 10, 1_000)).is_none());
    let begun = jobs.hand_out().unwrap();
    assert!(jobs.add(job(&slab, 1, 11, 2)).is_none());
    assert!(jobs.give_back(begun, Ok(())).is_none());
    let mut handed_out = 0;
    let ended = loop {
        let slice = jobs.hand_out().unwrap();
        handed_out += 1;
        if let Some(ended) = jobs.give_back(slice, Ok(())) {
            break ended;
        }
    };
    assert_eq!((ended.completion.ticket, handed_out), (Ticket(11), 4), "turn and turn about");
}

#[test]
fn threads_share_a_long_job() {
    let (slab, mut jobs) = (slab(), Jobs::default());
    jobs.add(job(&slab, 1, 10, 3));
    let slices: Vec<_> = (0..3).map(|_| jobs.hand_out().unwrap()).collect();
    assert!(jobs.hand_out().is_none());
    let ends: Vec<_> = slices.into_iter().rev().map(|slice| jobs.give_back(slice, Ok(()))).collect();
    assert!(matches!(&ends[..], [None, None, Some(_)]), "it ends with the last slice, in whatever order");
}

#[test]
fn a_slice_that_fails_fails_its_job_alone() {
    let (slab, mut jobs) = (slab(), Jobs::default());
    jobs.add(job(&slab, 1, 10, 3));
    jobs.add(job(&slab, 1, 11, 1));
    let (one, other, again) = (jobs.hand_out().unwrap(), jobs.hand_out().unwrap(), jobs.hand_out().unwrap());
    assert!(jobs.give_back(one, Err(OutOfRange { offset: 0, len: 1, bytes: 0 })).is_none());
    assert!(jobs.hand_out().is_none(), "nothing more of it is handed out");
    assert_eq!(jobs.give_back(other, Ok(())).unwrap().completion.result, Ok(()));
    let failed = jobs.give_back(again, Ok(())).unwrap().completion;
    assert_eq!((failed.ticket, failed.result), (Ticket(10), Err(Failure::Fabric("a copy left its slab"))));
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Add { peer: u64, slices: u64 },
    HandOut,
    GiveBack(usize),
    Close(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..3_u64, 0..5_u64).prop_map(|(peer, slices)| Act::Add { peer, slices }),
        Just(Act::HandOut),
        (0..8_usize).prop_map(Act::GiveBack),
        (0..3_u64).prop_map(Act::Close),
    ]
}

proptest! {
    #[test]
    fn every_job_ends_once_and_closing_ends_the_handing_out(acts in prop::collection::vec(act(), 1..150)) {
        let (slab, mut jobs) = (slab(), Jobs::default());
        let mut open: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut out, mut next) = (Vec::new(), 0);
        let drain = (0..40).flat_map(|_| [Act::HandOut, Act::GiveBack(0)]);
        for act in acts.into_iter().chain((0..3).map(Act::Close)).chain(drain.cycle().take(1_500)) {
            let ended = match act {
                Act::Add { peer, slices } => {
                    next += 1;
                    open.insert(next, peer);
                    jobs.add(job(&slab, peer, next, slices)).into_iter().collect()
                }
                Act::HandOut => {
                    out.extend(jobs.hand_out());
                    Vec::new()
                }
                Act::GiveBack(_) if out.is_empty() => Vec::new(),
                Act::GiveBack(at) => {
                    let slice = out.remove(at % out.len());
                    jobs.give_back(slice, Ok(())).into_iter().collect()
                }
                Act::Close(peer) => {
                    let before = jobs.copying(PeerId(peer));
                    let ended = jobs.cut_short(PeerId(peer));
                    prop_assert_eq!(jobs.copying(PeerId(peer)), before, "closing stops no thread");
                    ended
                }
            };
            for end in ended {
                let peer = open.remove(&end.completion.ticket.0);
                prop_assert_eq!(peer, Some(end.completion.peer.0), "an end that is a second one");
            }
            prop_assert_eq!(jobs.len(), open.len());
            prop_assert_eq!((0..3).map(|peer| jobs.copying(PeerId(peer))).sum::<usize>(), out.len());
        }
        prop_assert!(open.is_empty() && !jobs.has_work(), "{} jobs never ended", open.len());
    }
}
