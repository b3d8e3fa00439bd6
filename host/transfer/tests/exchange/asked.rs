//! Engines whose books are their own: what was read counts when they have said that it was still theirs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use sluice_engine_sdk::wire::ToEngine;
use sluice_transfer::exchange::{Books, Deaf, Detached, Ears, Said};
use sluice_transfer::fabric::Fault;
use sluice_transfer::protocol::{Attempt, BlockRef, Direction, EngineId, Epoch, Peer, Reason, Verb};

use crate::engine::{Engine, Job};
use crate::kv::{PREFILL, slabs};
use crate::world::World;

/// What an engine elsewhere was told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<ToEngine>>>);

impl Ears for Told {
    fn tell(&self, event: ToEngine) -> Result<(), Deaf> {
        self.0.lock().unwrap().push(event);
        Ok(())
    }

    fn end(&self, _: Detached) {}
}

impl Told {
    /// What it was asked: of which READ, about which blocks.
    fn questions(&self) -> Vec<(Attempt, u32, Vec<BlockRef>)> {
        let told = self.0.lock().unwrap();
        let asked = told.iter().filter_map(|event| match event {
            ToEngine::Confirm { attempt, number, blocks } => Some((*attempt, *number, blocks.clone())),
            _ => None,
        });
        asked.collect()
    }
}

/// A READ of all tokens but the first 16 from an engine that must be asked, at the point where it was asked.
fn asked() -> (World, Told, Job, Peer) {
    let mut world = World::stepped(|_| Fault::None);
    let (told, peer) = (Told::default(), Peer { engine: EngineId(9), incarnation: 1 });
    let (ears, slabs) = (Box::new(told.clone()), slabs(PREFILL));
    world.handle.attach_to(peer, PREFILL, slabs, Books::Asked, ears).unwrap();
    let job = world.job(Verb::Read, Direction::PrefillToDecode, 64);
    world.handle.said(peer, Said::Hold(job.hold())).unwrap();
    world.handle.filled(peer, job.attempt.id).unwrap();
    let mut receive = job.receive(peer);
    receive.wanted.first = 16;
    world.handle.said(world.decode.peer, Said::Receive(receive)).unwrap();
    while told.questions().is_empty() {
        world.step();
    }
    (world, told, job, peer)
}

fn outcome(engine: &Engine, job: &Job) -> Option<bool> {
    engine.outcome(job.attempt)
}

#[test]
fn nothing_counts_before_the_engine_has_answered_and_it_is_asked_again() {
    let (mut world, told, job, peer) = asked();
    let (attempt, _, blocks) = told.questions().remove(0);
    assert_eq!((attempt, &blocks[..]), (job.attempt, &job.source[1..]), "of what was read");
    for _ in 0..4_500 {
        world.step();
    }
    assert_eq!(outcome(&world.decode, &job), None);
    let again = told.questions();
    // One READ for each pair of ranks.
    let numbers: BTreeSet<u32> = again.iter().map(|(_, number, _)| *number).collect();
    assert_eq!(numbers.len(), 4);
    for number in numbers {
        let times = again.iter().filter(|question| question.1 == number).count();
        assert!((3..=5).contains(&times), "asked {times} times in 4.5 s");
        world.handle.said(peer, Said::Confirmed { attempt, number, held: true }).unwrap();
    }
    assert!(again.iter().all(|question| question.0 == attempt && question.2 == blocks));
    world.wait(job.direction, true, "its end", |sink| sink.outcome(job.attempt).is_some());
    assert_eq!(outcome(&world.decode, &job), Some(true));
}

#[test]
fn an_answer_to_something_else_is_none() {
    let (mut world, told, job, peer) = asked();
    let (attempt, number, _) = told.questions().remove(0);
    let other = Attempt { epoch: Epoch(attempt.epoch.0 + 1), ..attempt };
    for (attempt, number) in [(attempt, number + 100), (other, number)] {
        world.handle.said(peer, Said::Confirmed { attempt, number, held: true }).unwrap();
        // Nor is it an answer that another engine gives.
        let decode = world.decode.peer;
        world.handle.said(decode, Said::Confirmed { attempt, number, held: true }).unwrap();
    }
    for _ in 0..50 {
        world.step();
    }
    assert_eq!(outcome(&world.decode, &job), None);
    // Said twice, the first counts.
    world.handle.said(peer, Said::Confirmed { attempt, number, held: false }).unwrap();
    world.handle.said(peer, Said::Confirmed { attempt, number, held: true }).unwrap();
    world.wait(job.direction, true, "its end", |sink| sink.outcome(job.attempt).is_some());
    let stale = ToEngine::Failed { attempt: job.attempt, reason: Reason::Stale };
    assert!(world.decode.was_told(&stale), "{:?}", world.decode.told);
}

#[test]
fn an_engine_that_goes_without_an_answer_has_given_none() {
    let (mut world, _, job, peer) = asked();
    world.handle.detach(peer).unwrap();
    world.wait(job.direction, true, "its end", |sink| sink.outcome(job.attempt).is_some());
    assert_eq!(outcome(&world.decode, &job), Some(false));
    world.wait(job.direction, true, "its blocks", |sink| sink.used() == 0);
}
