//! Engines of different ranks, block sizes and orders, in all four ways.

use std::sync::atomic::Ordering;

use sluice_engine_sdk::wire::{
    Attempt, Direction, Epoch, HoldEnd, Reason, Subject, ToEngine, TransferId, Verb, proofs,
};

use super::engine::{Engine, Job, POSITION_TOKENS};
use super::kv::{DECODE, LAYERS, PREFILL};
use super::world::World;

fn pair(world: &World) -> (Engine, Engine) {
    let prefill = Engine::attach(&world.socket, "prefill-0", PREFILL);
    world.until_attached("prefill-0");
    let decode = Engine::attach(&world.socket, "decode-0", DECODE);
    world.until_attached("decode-0");
    (prefill, decode)
}

/// Moves one prompt, and looks at every byte and every block.
pub fn moves(job: &Job, source: &mut Engine, sink: &mut Engine, receive_first: bool) {
    let (from, to) = (source.allocate(job.tokens), sink.allocate(job.tokens));
    let name = source.name.clone();
    // From decode to prefill comes what both prove; a part of a position is not.
    let is_back = job.direction == Direction::DecodeToPrefill;
    let tokens: Vec<u32> = (0..job.tokens).collect();
    let proven = || if is_back { proofs(&tokens, POSITION_TOKENS) } else { Vec::new() };
    let comes = if is_back { job.tokens / POSITION_TOKENS * POSITION_TOKENS } else { job.tokens };
    if receive_first {
        sink.receive(job, &name, &to, Vec::new());
    }
    source.hold(job, &from, proven());
    for layer in 0..LAYERS {
        source.compute(job, &from, layer);
    }
    source.filled(job);
    if !receive_first {
        if is_back {
            source.until_held(job.id);
        }
        sink.receive(job, &name, &to, proven());
    }
    while sink.outcome(job.attempt()).is_none() {
        // A reader's confirmation needs both to hear.
        source.hear_once();
        sink.hear_once();
    }
    assert_eq!(sink.outcome(job.attempt()), Some(true), "{:?}", sink.told);
    assert_eq!(sink.wrong(job, &to, comes), 0);
    sink.take_over(&to);
    sink.free(&to);
    source.hear_until(|source| source.named.is_empty());
    assert!(source.was_told(&ToEngine::HoldEnded { id: job.id, end: HoldEnd::Delivered }));
    assert_eq!((source.used(), sink.used()), (0, 0));
}

#[test]
fn every_way_moves_every_byte_between_processes_ranks() {
    let world = World::new();
    let (mut prefill, mut decode) = pair(&world);
    let mut number = 0;
    for receive_first in [true, false] {
        for verb in [Verb::Read, Verb::Write] {
            for direction in [Direction::PrefillToDecode, Direction::DecodeToPrefill] {
                if receive_first && direction == Direction::DecodeToPrefill {
                    // A turn is held before anybody asks for it.
                    continue;
                }
                number += 1;
                let job = Job { direction, ..Job::new(number, verb, 77) };
                match direction {
                    Direction::PrefillToDecode => moves(&job, &mut prefill, &mut decode, receive_first),
                    Direction::DecodeToPrefill => moves(&job, &mut decode, &mut prefill, receive_first),
                }
            }
        }
    }
    let figures = world.node.handle().figures();
    assert_eq!((figures.completed, figures.holds.get(&HoldEnd::Delivered)), (6, Some(&6)));
    assert_eq!(world.node.handle().holds(), 0);
}

#[test]
fn blocks_that_are_no_longer_the_same_are_not_delivered() {
    let world = World::new();
    let (mut prefill, mut decode) = pair(&world);
    prefill.is_honest = false;
    let job = Job::new(1, Verb::Read, 64);
    let (from, to) = (prefill.allocate(64), decode.allocate(64));
    prefill.hold(&job, &from, Vec::new());
    prefill.filled(&job);
    decode.receive(&job, "prefill-0", &to, Vec::new());
    while decode.outcome(job.attempt()).is_none() {
        prefill.hear_once();
        decode.hear_once();
    }
    assert!(decode.was_told(&ToEngine::Failed { attempt: job.attempt(), reason: Reason::Stale }));
    decode.hear_until(|decode| decode.named.is_empty());
}

#[test]
fn leases_are_renewed_and_ended_by_whoever_knows_the_hold() {
    let world = World::new();
    let (mut prefill, mut decode) = pair(&world);
    let job = Job::new(1, Verb::Read, 32);
    let blocks = prefill.allocate(32);
    prefill.hold(&job, &blocks, Vec::new());
    prefill.filled(&job);
    // Behind the hold, which comes by another socket.
    prefill.sessions[0].renew(job.id).unwrap();
    prefill.hear_until(|engine| is_left(engine, job.id, 1));
    assert!(world.node.handle().hold(job.id).is_some_and(|held| held.is_filled));
    decode.sessions[0].renew(job.id).unwrap();
    decode.hear_until(|engine| is_left(engine, job.id, 1));
    decode.sessions[0].release(job.id).unwrap();
    prefill.hear_until(|engine| engine.named.is_empty());
    assert!(prefill.was_told(&ToEngine::HoldEnded { id: job.id, end: HoldEnd::Released }));
    decode.sessions[0].renew(job.id).unwrap();
    decode.hear_until(|engine| engine.was_told(&ToEngine::LeaseLeft { id: job.id, left_ms: 0 }));
    // The host may as well.
    let job = Job::new(2, Verb::Read, 32);
    let blocks = prefill.allocate(32);
    prefill.hold(&job, &blocks, Vec::new());
    prefill.sessions[0].renew(job.id).unwrap();
    prefill.hear_until(|engine| is_left(engine, job.id, 1));
    world.node.handle().release(job.id).unwrap();
    prefill.hear_until(|engine| engine.named.is_empty());
    assert!(world.node.handle().hold(job.id).is_none());
}

fn is_left(engine: &Engine, id: TransferId, least_ms: u64) -> bool {
    let is_it = |event: &ToEngine| matches!(event, ToEngine::LeaseLeft { id: of, left_ms } if *of == id && *left_ms >= least_ms);
    engine.told.iter().any(is_it)
}

#[test]
fn what_cannot_be_is_refused_to_its_engine() {
    use sluice_engine_sdk::wire::Refused;
    let world = World::new();
    let (mut prefill, mut decode) = pair(&world);
    let job = Job::new(1, Verb::Write, 32);
    let blocks = decode.allocate(32);
    decode.receive(&job, "nobody", &blocks, Vec::new());
    let subject = Subject::Receive(job.attempt());
    decode.hear_until(|decode| decode.was_told(&ToEngine::Refused { subject, why: Refused::NoSource }));
    let blocks = prefill.allocate(32);
    prefill.hold(&job, &blocks, Vec::new());
    prefill.sessions[0].renew(job.id).unwrap();
    prefill.hear_until(|engine| is_left(engine, job.id, 1));
    // The name of a hold that there is, from another engine.
    let theirs = decode.allocate(32);
    decode.hold(&job, &theirs, Vec::new());
    let subject = Subject::Hold(job.id);
    decode.hear_until(|decode| decode.was_told(&ToEngine::Refused { subject, why: Refused::Used }));
    assert!(world.node.handle().hold(job.id).is_some(), "the first one is as it was");
    let refused = world.node.handle().figures().refused;
    assert_eq!(refused.get(&Refused::NoSource).zip(refused.get(&Refused::Used)), Some((&1, &1)));
}

#[test]
fn the_hosts_word_may_come_before_the_hold() {
    let world = World::new();
    let (mut prefill, _decode) = pair(&world);
    let node = world.node.handle();
    let [released, kept, plain] = [1, 2, 3].map(|number| Job::new(number, Verb::Read, 32));
    node.release(released.id).unwrap();
    node.keep(kept.id, 500_000).unwrap();
    for job in [&released, &kept, &plain] {
        let blocks = prefill.allocate(32);
        prefill.hold(job, &blocks, Vec::new());
        prefill.filled(job);
    }
    let ended = |job: &Job, end| ToEngine::HoldEnded { id: job.id, end };
    prefill.hear_until(|engine| engine.was_told(&ended(&released, HoldEnd::Released)));
    let is_filled = |job: &Job| node.hold(job.id).is_some_and(|held| held.is_filled);
    prefill.hear_until(|_| is_filled(&kept) && is_filled(&plain));
    // The exchange has heard all of that, too.
    prefill.until_held(plain.id);
    // Their own leases are 30 s.
    world.skipped_ms.fetch_add(60_000, Ordering::Relaxed);
    prefill.hear_until(|engine| engine.was_told(&ended(&plain, HoldEnd::Expired)));
    assert!(node.hold(kept.id).is_some(), "{:?}", prefill.told);
    node.keep(kept.id, 600_000).unwrap();
    node.release(kept.id).unwrap();
    prefill.hear_until(|engine| engine.named.is_empty());
    node.release(kept.id).unwrap();
    assert!(node.renew(kept.id, None).unwrap().is_none());
}

#[test]
fn what_is_held_by_decode_comes_to_nobody_without_proofs() {
    use sluice_engine_sdk::wire::Refused;
    let world = World::new();
    let (mut prefill, mut decode) = pair(&world);
    let tokens: Vec<u32> = (0..32).collect();
    for (number, held) in [(1, proofs(&tokens, POSITION_TOKENS)), (2, Vec::new())] {
        let job = Job { direction: Direction::DecodeToPrefill, ..Job::new(number, Verb::Read, 32) };
        // Before there is a hold, without proofs of its own, and of a hold that has none.
        let asks = [proofs(&tokens, POSITION_TOKENS), Vec::new(), proofs(&tokens, POSITION_TOKENS)];
        for (at, asked) in asks.into_iter().enumerate() {
            if at == 1 {
                let from = decode.allocate(32);
                decode.hold(&job, &from, held.clone());
                decode.filled(&job);
                decode.until_held(job.id);
            }
            if at == 2 && number == 1 {
                continue;
            }
            let to = prefill.allocate(32);
            let attempt = Attempt { id: job.id, epoch: Epoch(at as u32 + 1) };
            prefill.receive_as(&job, attempt, "decode-0", &to, asked);
            let subject = Subject::Receive(attempt);
            prefill
                .hear_until(|engine| engine.was_told(&ToEngine::Refused { subject, why: Refused::Unproven }));
        }
        world.node.handle().release(job.id).unwrap();
        decode.hear_until(|engine| engine.named.is_empty());
    }
    assert_eq!(world.node.handle().figures().refused.get(&Refused::Unproven), Some(&5));
}

#[test]
fn the_hosts_word_may_come_before_the_receive() {
    let world = World::new();
    let (mut prefill, mut decode) = pair(&world);
    let node = world.node.handle();
    let [cancelled, expected] = [1, 2].map(|number| Job::new(number, Verb::Write, 32));
    node.cancel("decode-0", cancelled.attempt()).unwrap();
    node.expect("decode-0", expected.attempt(), 5_000).unwrap();
    for job in [&cancelled, &expected] {
        let blocks = decode.allocate(32);
        decode.receive(job, "prefill-0", &blocks, Vec::new());
    }
    let failed = |job: &Job, reason| ToEngine::Failed { attempt: job.attempt(), reason };
    decode.hear_until(|engine| engine.was_told(&failed(&cancelled, Reason::Cancelled)));
    decode.hear_until(|engine| engine.named.len() == 1);
    // Its own time for the first byte is 30 s. What is asked behind it shows that it has begun.
    decode.sessions[0].renew(TransferId(9)).unwrap();
    decode.hear_until(|engine| engine.was_told(&ToEngine::LeaseLeft { id: TransferId(9), left_ms: 0 }));
    world.skipped_ms.fetch_add(10_000, Ordering::Relaxed);
    decode.hear_until(|engine| engine.was_told(&failed(&expected, Reason::NoFirstByte)));
    prefill.hear_once();
}

#[test]
fn it_is_known_whether_anybody_has_asked_for_a_hold() {
    let world = World::new();
    let (mut prefill, mut decode) = pair(&world);
    let node = world.node.handle();
    for (number, way) in
        ["receives before", "releases before", "receives", "releases", "nobody"].into_iter().enumerate()
    {
        let job = Job::new(number as u128, Verb::Write, 32);
        let (from, to) = (prefill.allocate(32), decode.allocate(32));
        if way == "receives before" {
            decode.receive(&job, "prefill-0", &to, Vec::new());
            decode.sessions[0].renew(TransferId(99)).unwrap();
            let heard = ToEngine::LeaseLeft { id: TransferId(99), left_ms: 0 };
            decode.hear_until(|engine| engine.was_told(&heard));
        }
        if way == "releases before" {
            decode.sessions[0].release(job.id).unwrap();
            decode.sessions[0].renew(TransferId(98)).unwrap();
            let heard = ToEngine::LeaseLeft { id: TransferId(98), left_ms: 0 };
            decode.hear_until(|engine| engine.was_told(&heard));
            prefill.hold(&job, &from, Vec::new());
            let ended = ToEngine::HoldEnded { id: job.id, end: HoldEnd::Released };
            prefill.hear_until(|engine| engine.was_told(&ended));
            continue;
        }
        prefill.hold(&job, &from, Vec::new());
        prefill.until_held(job.id);
        let is_asked_for = || node.hold(job.id).is_none_or(|held| held.is_asked_for);
        assert_eq!(is_asked_for(), way == "receives before", "{way}");
        match way {
            "receives" => decode.receive(&job, "prefill-0", &to, Vec::new()),
            // Not that its holder knows it.
            "releases" => decode.sessions[0].release(job.id).unwrap(),
            _ => {}
        }
        if way == "releases" || way == "receives" {
            decode.hear_until(|_| is_asked_for());
        }
        node.release(job.id).unwrap();
    }
}
