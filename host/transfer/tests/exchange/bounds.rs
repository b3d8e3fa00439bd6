//! What is full, refused, late or stopped: nothing is lost in silence.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sluice_engine_sdk::wire::ToEngine;
use sluice_transfer::exchange::limits::{MAX_COMMANDS, MAX_ENGINE_EVENTS, MAX_ENGINES};
use sluice_transfer::exchange::{AttachError, CommandError, Detached, Exchange, NotTaken, Stopped};
use sluice_transfer::fabric::{Fault, LocalFabric, ShmSettings};
use sluice_transfer::layout::KvLayout;
use sluice_transfer::protocol::limits::Limits;
use sluice_transfer::protocol::{
    Attempt, Direction, EngineId, Epoch, HoldEnd, Peer, Reason, Refused, RenewRefused, Tokens, TransferId,
    Verb,
};

use crate::engine::Engine;
use crate::kv::{DECODE, LAYERS, PREFILL, slabs};
use crate::world::{Driver, PATIENCE, World};

const DOWN: Direction = Direction::PrefillToDecode;

fn stepped() -> World {
    let mut world = World::stepped(|_| Fault::None);
    world.step();
    world
}

#[test]
fn a_full_queue_is_the_callers_error_and_passes() {
    let mut world = stepped();
    let (handle, peer) = (world.handle.clone(), world.prefill.peer);
    let job = world.job(Verb::Write, DOWN, 64);
    let release = || handle.release(peer, TransferId(99));
    assert_eq!((0..MAX_COMMANDS).map(|_| release()).find(Result::is_err), None);
    assert_eq!(release(), Err(NotTaken::Full));
    assert_eq!(handle.hold(peer, job.hold()).err(), Some(NotTaken::Full));
    let newcomer = Peer { engine: EngineId(9), incarnation: 1 };
    let attach = || handle.attach(newcomer, PREFILL, slabs(PREFILL), world.prefill.table.clone());
    assert!(matches!(attach(), Err(AttachError::NotTaken(NotTaken::Full))));
    let figures = handle.figures();
    assert_eq!((figures.commands_waiting, figures.commands_refused), (MAX_COMMANDS, 3));
    let Driver::Hand(exchange) = &mut world.driver else { panic!("stepped by hand") };
    assert_eq!(exchange.step(2).rest_ms, 0, "there is more to do");
    assert_eq!(release(), Ok(()));
    assert!(attach().is_ok(), "its place was not taken by the one that was refused");
}

#[test]
fn an_engine_that_does_not_listen_is_detached_and_no_other() {
    let mut world = stepped();
    let Driver::Hand(exchange) = &mut world.driver else { panic!("stepped by hand") };
    let peer = world.prefill.peer;
    // Two events each.
    for number in 0..=MAX_ENGINE_EVENTS as u128 / 2 {
        let id = TransferId(1_000 + number);
        let mut hold = crate::engine::Job {
            attempt: Attempt { id, epoch: Epoch(1) },
            verb: Verb::Read,
            direction: DOWN,
            tokens: 16,
            wanted: Tokens { first: 0, end: 16 },
            source: Arc::from([]),
            sink: Arc::from([]),
            sink_first: 0,
        }
        .hold();
        hold.blocks = Arc::from([sluice_transfer::protocol::BlockRef { index: 0, generation: 0 }]);
        drop(world.handle.hold(peer, hold).unwrap());
        world.handle.release(peer, id).unwrap();
        if number % 256 == 0 {
            exchange.step(3);
        }
    }
    (0..3).for_each(|_| assert!(!exchange.step(3).stopped));
    let figures = world.handle.figures();
    assert_eq!(figures.detached.get(&Detached::Deaf), Some(&1));
    assert_eq!(figures.engines, 1);
    let mut heard = 0;
    let end = loop {
        match world.prefill.next_event() {
            Ok(Some(ToEngine::HoldEnded { end, .. })) => {
                assert_eq!(end, HoldEnd::Released);
                heard += 1;
            }
            Ok(Some(_)) => heard += 1,
            Ok(None) => panic!("it was detached"),
            Err(end) => break end,
        }
    };
    assert_eq!((heard, end), (MAX_ENGINE_EVENTS, Detached::Deaf), "all that fitted, then the end");
    world.restart(peer);
    world.transfer(Verb::Read, DOWN, 64, true);
}

#[test]
fn a_stop_in_the_middle_ends_everything_and_lets_go_of_all_memory() {
    for seed in 0..20_u32 {
        let mut world = World::threaded(ShmSettings::default());
        let mut jobs = Vec::new();
        for verb in [Verb::Read, Verb::Write] {
            let job = world.job(verb, DOWN, 400);
            world.receive(&job).unwrap();
            world.hold(&job).unwrap();
            (0..=seed % (LAYERS - 1)).for_each(|layer| job.compute(&world.prefill, layer));
            jobs.push(job);
        }
        let handle = world.handle.clone();
        let last = handle.renew(world.prefill.peer, jobs[0].attempt.id, None).unwrap();
        let (stopped, mut prefill, mut decode) = world.stop();
        assert_eq!(stopped, Ok(()));
        let mut last = last;
        let renewed = last.wait(Duration::ZERO).expect("a command that was taken is answered").unwrap();
        assert!(renewed.is_ok(), "it was obeyed before the stop: {renewed:?}");
        for engine in [&mut prefill, &mut decode] {
            while engine.hear(Duration::ZERO) {}
            assert_eq!(engine.end, Some(Detached::Stopped));
            assert_eq!(engine.slabs.iter().map(Arc::strong_count).max(), Some(1), "somebody still maps it");
        }
        assert!(jobs.iter().all(|job| decode.outcome(job.attempt) == Some(false)), "{:?}", decode.told);
        assert_eq!((prefill.used(), decode.used()), (0, 0), "all blocks were given back first");
        assert_eq!(handle.release(prefill.peer, TransferId(1)), Err(NotTaken::Stopped));
        assert_eq!(handle.figures().engines, 0);
    }
}

#[test]
fn whoever_waits_for_an_exchange_that_is_no_more_is_told() {
    let mut world = stepped();
    let job = world.job(Verb::Read, DOWN, 64);
    let mut answer = world.handle.hold(world.prefill.peer, job.hold()).unwrap();
    let handle = world.handle.clone();
    let (_, mut prefill, _) = world.stop();
    assert_eq!(answer.wait(PATIENCE), Some(Err(Stopped)));
    assert_eq!(prefill.next_event(), Err(Detached::Abandoned));
    assert_eq!(handle.hold(prefill.peer, job.hold()).err(), Some(NotTaken::Stopped));
}

struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_runtime_is_woken_by_answers_and_events() {
    let mut world = stepped();
    let woken = Arc::new(Woken(AtomicU64::new(0)));
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    let job = world.job(Verb::Read, DOWN, 64);
    let mut answer = world.handle.hold(world.prefill.peer, job.hold()).unwrap();
    assert_eq!(Pin::new(&mut answer).poll(&mut context), Poll::Pending);
    assert!(world.prefill.poll_event(&mut context).is_pending());
    world.handle.release(world.prefill.peer, job.attempt.id).unwrap();
    let Driver::Hand(exchange) = &mut world.driver else { panic!("stepped by hand") };
    exchange.step(2);
    assert_eq!(woken.0.load(Ordering::Relaxed), 2);
    assert_eq!(Pin::new(&mut answer).poll(&mut context), Poll::Ready(Ok(Ok(()))));
    let ended = ToEngine::HoldEnded { id: job.attempt.id, end: HoldEnd::Released };
    assert_eq!(world.prefill.poll_event(&mut context), Poll::Ready(Ok(ended)));
}

#[test]
fn engines_that_make_no_sense_are_not_attached() {
    let (mut exchange, handle) =
        Exchange::new(Arc::new(LocalFabric::new(|_| Fault::None)), Limits::default());
    let first = Engine::attach(&handle, 1, 5, PREFILL);
    exchange.step(1);
    let peer = |engine, incarnation| Peer { engine: EngineId(engine), incarnation };
    let attach = |peer, layout: KvLayout, slabs| {
        handle
            .attach(peer, layout, slabs, first.table.clone())
            .map(drop)
            .map_err(|refused| refused.to_string())
    };
    let odd = KvLayout { tp_size: 3, ..PREFILL };
    let large = KvLayout { blocks: 1 << 20, ..PREFILL };
    let cases = [
        (attach(peer(1, 5), PREFILL, slabs(PREFILL)), "this life of the engine is attached already"),
        (attach(peer(1, 4), PREFILL, slabs(PREFILL)), "incarnation 5 of this engine is attached"),
        (attach(peer(2, 1), odd, slabs(PREFILL)), "8 KV heads on tp_size 3"),
        (attach(peer(2, 1), DECODE, slabs(PREFILL)), "4 slabs for 2 ranks"),
        (attach(peer(2, 1), large, slabs(PREFILL)), "the slab of rank 0 has 262144 bytes"),
    ];
    for (refused, told) in cases {
        assert!(refused.as_ref().is_err_and(|refused| refused.contains(told)), "{refused:?}: {told}");
    }
    let small = KvLayout { tp_size: 1, blocks: 1, ..PREFILL };
    let slab = slabs(small);
    let fits = |number| attach(peer(100 + number, 1), small, slab.clone());
    assert_eq!((1..MAX_ENGINES as u128).map(fits).find(Result::is_err), None);
    assert!(fits(0).is_err_and(|refused| refused.contains("256 engines are attached")));
}

#[test]
fn a_later_life_takes_its_engines_place() {
    let mut world = stepped();
    let job = world.job(Verb::Write, DOWN, 64);
    world.receive(&job).unwrap();
    world.hold(&job).unwrap();
    let second = Engine::attach(&world.handle, 1, 2, PREFILL);
    world.wait(DOWN, false, "the first life's end", |first| first.end == Some(Detached::Superseded));
    let failed = ToEngine::Failed { attempt: job.attempt, reason: Reason::PeerLost };
    world.wait(DOWN, true, "the consumer's answer", |sink| sink.was_told(&failed) && sink.used() == 0);
    world.prefill = second;
    world.transfer(Verb::Write, DOWN, 64, true);
}

#[test]
fn what_cannot_begin_says_why() {
    let mut world = stepped();
    let other_model = Engine::attach(&world.handle, 3, 1, KvLayout { layers: 2, ..PREFILL });
    let many_ranks = KvLayout { kv_heads: 32, tp_size: 32, block_tokens: 32, ..PREFILL };
    let (wide, wider) =
        (Engine::attach(&world.handle, 4, 1, many_ranks), Engine::attach(&world.handle, 5, 1, many_ranks));
    let job = world.job(Verb::Read, DOWN, 64);
    let (source, sink) = (world.prefill.peer, world.decode.peer);
    let nobody = Peer { engine: EngineId(77), incarnation: 1 };
    let receive = |world: &mut World, to, from, bend: &dyn Fn(&mut sluice_transfer::exchange::Receive)| {
        let mut receive = job.receive(from);
        bend(&mut receive);
        let answer = world.handle.receive(to, receive).unwrap();
        world.answer(answer).unwrap().map_err(|refused| refused.to_string())
    };
    let cases = [
        (receive(&mut world, nobody, source, &|_| {}), "incarnation 1, is not attached"),
        (receive(&mut world, sink, nobody, &|_| {}), "incarnation 1, is not attached"),
        (receive(&mut world, sink, sink, &|_| {}), "source and sink are the same engine"),
        (receive(&mut world, sink, source, &|r| r.extent.end_token = 0), "no valid extent"),
        (receive(&mut world, sink, source, &|r| r.first_token = 16), "the blocks do not hold all tokens"),
        (
            receive(&mut world, sink, source, &|r| (r.extent.end_token, r.wanted.end) = (65, 65)),
            "the blocks do not hold all tokens",
        ),
        (receive(&mut world, sink, source, &|r| r.wanted.first = 64), "none of its tokens is wanted"),
        (receive(&mut world, sink, source, &|r| r.wanted.end = 0), "none of its tokens is wanted"),
        (
            // One token more than a position is another whole position.
            receive(&mut world, sink, source, &|r| (r.blocks, r.wanted.end) = (r.blocks[..1].into(), 33)),
            "the blocks do not hold all tokens",
        ),
        (receive(&mut world, sink, other_model.peer, &|_| {}), "layers is 2 at the source and 4 at the sink"),
        (receive(&mut world, wide.peer, wider.peer, &|_| {}), "32 pairs of ranks feed each other"),
        (receive(&mut world, sink, source, &|r| r.whole_ms = u64::MAX), "no valid description of a transfer"),
    ];
    for (refused, told) in cases {
        assert!(refused.as_ref().is_err_and(|refused| refused.contains(told)), "{refused:?}: {told}");
    }
    world.hold(&job).unwrap();
    assert_eq!(world.hold(&job), Err(CommandError::Refused(Refused::Used)));
    let renewals = [
        (TransferId(99), None, Err(RenewRefused::Over)),
        (job.attempt.id, Some(1_000), Err(RenewRefused::Time { for_ms: 1_000, margin_ms: 1_000 })),
        (job.attempt.id, Some(5_000), Ok(4_000)),
        (job.attempt.id, None, Ok(29_000)),
    ];
    world.handle.filled(source, job.attempt.id).unwrap();
    for (id, for_ms, expected) in renewals {
        let answer = world.handle.renew(source, id, for_ms).unwrap();
        assert_eq!(world.answer(answer).unwrap(), expected.map_err(CommandError::Renew), "{for_ms:?}");
    }
    world.handle.filled(nobody, job.attempt.id).unwrap();
    world.step();
    assert_eq!(world.handle.figures().commands_unaddressed, 1);
}

#[test]
fn sides_that_mean_other_tokens_move_none() {
    for verb in [Verb::Read, Verb::Write] {
        let mut world = stepped();
        let job = world.job(verb, DOWN, 64);
        world.hold(&job).unwrap();
        (0..LAYERS).for_each(|layer| job.compute(&world.prefill, layer));
        // As many positions, of other tokens.
        let mut receive = job.receive(world.prefill.peer);
        receive.extent.end_token = 63;
        let answer = world.handle.receive(world.decode.peer, receive).unwrap();
        world.answer(answer).unwrap().unwrap();
        let failed = ToEngine::Failed { attempt: job.attempt, reason: Reason::Fabric };
        world.wait(DOWN, true, "the failure", |sink| sink.was_told(&failed) && sink.used() == 0);
        let figures = world.handle.figures();
        assert!(figures.posts_refused > 0);
        assert_eq!(figures.total().bytes, 0);
    }
}

#[test]
fn deadlines_are_kept_by_the_injected_clock_and_counted() {
    let mut world = stepped();
    let job = world.job(Verb::Write, DOWN, 64);
    world.receive(&job).unwrap();
    world.handle.expect(world.decode.peer, job.attempt, 500).unwrap();
    world.step();
    let asked_ms = world.now_ms;
    let failed = ToEngine::Failed { attempt: job.attempt, reason: Reason::NoFirstByte };
    world.wait(DOWN, true, "the deadline", |sink| sink.was_told(&failed));
    assert_eq!(world.now_ms, asked_ms + 500);
    world.wait(DOWN, true, "the blocks", |sink| sink.used() == 0);
    let figures = world.handle.figures();
    assert_eq!(figures.failed.get(&Reason::NoFirstByte), Some(&1));
    assert_eq!(figures.total().deadline_misses, 1);
    assert_eq!(figures.endpoints_closed, 0, "the producer said that it had written nothing");
}
