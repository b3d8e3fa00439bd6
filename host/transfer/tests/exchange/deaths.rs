//! Engines that die in the middle, and operations that fail: no corrupt block is told complete, every block comes
//! back, what was let go of is not written to, and the next transfer works.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluice_engine_sdk::wire::ToEngine;
use sluice_transfer::exchange::Detached;
use sluice_transfer::fabric::{Fault, ShmSettings};
use sluice_transfer::protocol::{Attempt, Direction, Epoch, Reason, Verb};

use crate::engine::{Engine, Job};
use crate::kv::{LAYERS, bytes_of};
use crate::world::World;

const TOKENS: u32 = 320;
const POINTS: u64 = 100;

/// Numbers that look drawn, the same for the same seed.
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn fault(&mut self) -> Fault {
        match self.below(12) {
            0 => Fault::Failed,
            1 => Fault::FailedHalfway,
            2 => Fault::LandsLate { polls: self.below(40) },
            3 => Fault::CompletionLost,
            4..=7 => Fault::Delayed { polls: self.below(20) },
            _ => Fault::None,
        }
    }

    fn flow(&mut self) -> (Verb, Direction) {
        let verb = [Verb::Read, Verb::Write][self.below(2) as usize];
        (verb, [Direction::PrefillToDecode, Direction::DecodeToPrefill][self.below(2) as usize])
    }
}

fn all_bytes(engine: &Engine) -> Vec<u8> {
    bytes_of(&engine.layout, &engine.slabs, &(0..engine.layout.blocks).collect::<Vec<_>>())
}

fn scribble(engine: &Engine) {
    engine.slabs.iter().for_each(|slab| slab.write(0, &vec![0xEE; slab.bytes() as usize]).unwrap());
}

/// What follows a death (or none) until all is quiet.
fn aftermath(world: &mut World, job: &Job, victim_is_sink: Option<bool>, seed: u64) {
    let direction = job.direction;
    if victim_is_sink != Some(true) {
        world.wait(direction, true, "an outcome", |sink| sink.outcome(job.attempt).is_some());
        let (_, sink) = world.sides(direction);
        if sink.outcome(job.attempt) == Some(true) {
            assert_eq!(job.all_wrong(sink), 0, "seed {seed}: told complete, and it is not");
            sink.free(&job.sink);
        }
        world.wait(direction, true, "the sink's blocks", |sink| sink.used() == 0);
    }
    if victim_is_sink != Some(false) {
        let source = world.sides(direction).0;
        source.handle.release(source.peer, job.attempt.id).unwrap();
        world.wait(direction, false, "the source's blocks", |source| source.used() == 0);
    }
    if let Some(at_sink) = victim_is_sink {
        world.wait(direction, at_sink, "the victim's end", |engine| engine.end == Some(Detached::Gone));
    }
    // Blocks of both sides are somebody else's now: whatever is written into them from here on would be seen.
    scribble(&world.prefill);
    scribble(&world.decode);
    let before = (all_bytes(&world.prefill), all_bytes(&world.decode));
    (0..100).for_each(|_| world.step());
    assert!(
        before == (all_bytes(&world.prefill), all_bytes(&world.decode)),
        "seed {seed}: a late write landed"
    );
}

fn die_at(seed: u64) -> Option<Reason> {
    let mut drawn = Drawn(seed);
    let calm = Arc::new(AtomicBool::new(seed.is_multiple_of(3)));
    let (quiet, mut faults) = (calm.clone(), Drawn(seed ^ 0xF0));
    let mut world = World::stepped(move |_| match quiet.load(Ordering::Relaxed) {
        true => Fault::Delayed { polls: faults.below(20) },
        false => faults.fault(),
    });
    let (verb, direction) = drawn.flow();
    let job = world.job(verb, direction, TOKENS);
    world.receive(&job).unwrap();
    world.hold(&job).unwrap();
    let victim_is_sink = [Some(true), Some(false), None][drawn.below(3) as usize];
    let dies_after = drawn.below(60);
    let mut computed = 0;
    for step in 0..=dies_after {
        if computed < LAYERS && drawn.below(6) == 0 {
            job.compute(world.sides(direction).0, computed);
            computed += 1;
        }
        if step < dies_after {
            world.step();
        }
    }
    let (source, sink) = world.sides(direction);
    let victim = victim_is_sink.map(|at_sink| if at_sink { sink.peer } else { source.peer });
    match victim {
        Some(victim) => world.handle.detach(victim).unwrap(),
        None => {
            (computed..LAYERS).for_each(|layer| job.compute(world.sides(direction).0, layer));
            let source = world.sides(direction).0;
            source.handle.filled(source.peer, job.attempt.id).unwrap();
        }
    }
    aftermath(&mut world, &job, victim_is_sink, seed);
    let reason = world.sides(direction).1.told.iter().find_map(|event| match event {
        ToEngine::Failed { reason, .. } => Some(*reason),
        _ => None,
    });
    calm.store(true, Ordering::Relaxed);
    if let Some(victim) = victim {
        world.restart(victim);
    }
    for verb in [Verb::Read, Verb::Write] {
        world.transfer(verb, direction, TOKENS, true);
    }
    reason
}

#[test]
fn engines_die_at_any_point_of_a_faulty_fabric() {
    let reasons: Vec<_> = (0..3 * POINTS).map(die_at).collect();
    let count = |reason| reasons.iter().filter(|found| **found == reason).count();
    // The seeds get where it matters.
    assert!(count(Some(Reason::PeerLost)) > 30, "{reasons:?}");
    assert!(count(Some(Reason::EndpointClosed)) > 10, "{reasons:?}");
    assert!(count(None) > 30, "{reasons:?}");
}

/// One exchange outlives a hundred deaths under real copies.
#[test]
fn engines_die_under_copy_threads() {
    let mut world = World::threaded(ShmSettings::default());
    for seed in 0..POINTS {
        let mut drawn = Drawn(seed);
        let (verb, direction) = drawn.flow();
        let job = world.job(verb, direction, TOKENS);
        world.receive(&job).unwrap();
        world.hold(&job).unwrap();
        let layers = drawn.below(u64::from(LAYERS)) as u32;
        for layer in 0..layers {
            job.compute(world.sides(direction).0, layer);
            let arrived = ToEngine::Arrived { attempt: job.attempt, rect: job.layer(layer) };
            world.wait(direction, true, "a layer", |sink| sink.was_told(&arrived));
        }
        // In the middle of what follows from these.
        (layers..LAYERS).for_each(|layer| job.compute(world.sides(direction).0, layer));
        let victim_is_sink = drawn.below(2) == 0;
        let (source, sink) = world.sides(direction);
        let victim = if victim_is_sink { sink.peer } else { source.peer };
        world.handle.detach(victim).unwrap();
        aftermath(&mut world, &job, Some(victim_is_sink), seed);
        world.restart(victim);
        world.prefill.told.clear();
        world.decode.told.clear();
        world.transfer(verb, direction, TOKENS, seed % 2 == 0);
    }
    let figures = world.handle.figures();
    assert_eq!(figures.detached.get(&Detached::Gone), Some(&POINTS));
    assert_eq!((figures.engines, figures.endpoints_closed), (2, POINTS));
    assert_eq!(figures.total().queued, 0);
}

#[test]
fn an_operation_that_failed_is_over_when_its_endpoint_is_closed() {
    for verb in [Verb::Write, Verb::Read] {
        let posts = AtomicU64::new(0);
        let mut world = World::stepped(move |_| match posts.fetch_add(1, Ordering::Relaxed) {
            0 => Fault::LandsLate { polls: 50 },
            _ => Fault::Delayed { polls: 5 },
        });
        let direction = Direction::PrefillToDecode;
        let mut job = world.job(verb, direction, TOKENS);
        world.hold(&job).unwrap();
        (0..LAYERS).for_each(|layer| job.compute(&world.prefill, layer));
        world.handle.filled(world.prefill.peer, job.attempt.id).unwrap();
        world.receive(&job).unwrap();
        let failed = |sink: &Engine| sink.outcome(job.attempt) == Some(false) && sink.used() == 0;
        world.wait(direction, true, "the first attempt's end", failed);
        assert!(world.now_ms < 40, "it is not waited for: the endpoint is closed");
        assert_eq!(world.handle.figures().endpoints_closed, 1);
        // The same blocks are used again at once, by the next attempt.
        job.attempt = Attempt { epoch: Epoch(2), ..job.attempt };
        job.sink = world.decode.allocate(TOKENS);
        world.receive(&job).unwrap();
        world.wait(direction, true, "the second attempt", |sink| sink.outcome(job.attempt) == Some(true));
        scribble(&world.decode);
        (0..100).for_each(|_| world.step());
        assert!(all_bytes(&world.decode).iter().all(|byte| *byte == 0xEE), "{verb:?}: a late write landed");
    }
}

#[test]
fn a_cancelled_transfer_gives_its_blocks_back_and_closes_nothing() {
    for (verb, direction) in [
        (Verb::Write, Direction::PrefillToDecode),
        (Verb::Read, Direction::PrefillToDecode),
        (Verb::Write, Direction::DecodeToPrefill),
        (Verb::Read, Direction::DecodeToPrefill),
    ] {
        for steps in 0..12 {
            let mut world = World::stepped(|_| Fault::Delayed { polls: 30 });
            let job = world.job(verb, direction, TOKENS);
            world.receive(&job).unwrap();
            world.hold(&job).unwrap();
            (0..LAYERS).for_each(|layer| job.compute(world.sides(direction).0, layer));
            (0..steps).for_each(|_| world.step());
            let sink = world.sides(direction).1.peer;
            world.handle.cancel(sink, job.attempt).unwrap();
            let cancelled = ToEngine::Failed { attempt: job.attempt, reason: Reason::Cancelled };
            let all_back = |sink: &Engine| sink.was_told(&cancelled) && sink.used() == 0;
            world.wait(direction, true, "the sink's blocks", all_back);
            // What was posted is waited for, not fenced.
            assert!(world.now_ms < 100, "{verb:?} {direction:?} after {steps}");
            let figures = world.handle.figures();
            assert_eq!((figures.endpoints_closed, figures.total().queued), (0, 0));
            let source = world.sides(direction).0;
            source.handle.release(source.peer, job.attempt.id).unwrap();
            world.wait(direction, false, "the source's blocks", |source| source.used() == 0);
            world.transfer(verb, direction, TOKENS, true);
        }
    }
}
