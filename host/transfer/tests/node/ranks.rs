//! An engine is all its ranks.

use sluice_engine_sdk::wire::{KvLayout, Reason, ToEngine, Verb};
use sluice_transfer::node::NodeEvent;

use super::engine::{Engine, Job};
use super::kv::{DECODE, LAYERS, PREFILL};
use super::world::World;

#[test]
fn an_engine_is_gone_with_its_first_rank_and_comes_back_with_its_last() {
    let world = World::new();
    let mut prefill = Engine::attach(&world.socket, "prefill-0", PREFILL);
    let mut decode = Engine::attach(&world.socket, "decode-0", DECODE);
    world.until_attached("decode-0");
    let engines = world.node.handle().engines();
    let about: Vec<_> = engines.iter().map(|engine| (engine.name.as_str(), engine.pids.len())).collect();
    assert!(about.contains(&("prefill-0", 4)) && about.contains(&("decode-0", 2)), "{about:?}");

    let job = Job::new(1, Verb::Write, 64);
    let (from, to) = (prefill.allocate(64), decode.allocate(64));
    decode.receive(&job, "prefill-0", &to, Vec::new());
    prefill.hold(&job, &from, Vec::new());
    prefill.compute(&job, &from, 0);
    decode.hear_until(|decode| decode.told.iter().any(|event| matches!(event, ToEngine::Arrived { .. })));
    prefill.drop_rank(2);
    decode.hear_until(|decode| decode.named.is_empty());
    assert!(decode.was_told(&ToEngine::Failed { attempt: job.attempt(), reason: Reason::PeerLost }));
    // That it was attached may be told after decode was.
    let is_gone = |event| matches!(event, NodeEvent::Detached { name, .. } if name == "prefill-0");
    while !is_gone(world.event()) {}
    assert!(world.node.handle().hold(job.id).is_none());

    prefill.come_back(&world.socket, 2);
    world.until_attached("prefill-0");
    let is_back = |engine: &Engine| engine.sessions.iter().all(|session| !session.is_over());
    prefill.hear_until(|prefill| is_back(prefill) && prefill.named.is_empty());
    let job = Job::new(2, Verb::Write, 64);
    let (from, to) = (prefill.allocate(64), decode.allocate(64));
    prefill.hold(&job, &from, Vec::new());
    (0..LAYERS).for_each(|layer| prefill.compute(&job, &from, layer));
    prefill.filled(&job);
    decode.receive(&job, "prefill-0", &to, Vec::new());
    decode.hear_until(|decode| decode.outcome(job.attempt()).is_some());
    assert_eq!(decode.wrong(&job, &to, 64), 0);
}

#[test]
fn ranks_that_differ_are_no_engine() {
    let world = World::new();
    let _first = Engine::attach_ranks(&world.socket, "prefill-0", PREFILL, 0..1);
    let other = KvLayout { blocks: PREFILL.blocks + 1, ..PREFILL };
    let _second = Engine::attach_ranks(&world.socket, "prefill-0", other, 1..2);
    let event = world.event();
    assert!(
        matches!(&event, NodeEvent::Refused { text, .. } if text.contains("another KV layout")),
        "{event:?}"
    );
    assert!(world.node.handle().engine("prefill-0").is_none());
}
