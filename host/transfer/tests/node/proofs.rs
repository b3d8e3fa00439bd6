//! Of a kept turn a later prompt gets what is proven to be its own beginning.

use sluice_engine_sdk::wire::{Direction, Refused, Subject, ToEngine, Verb, proofs};

use super::engine::{Engine, Job, POSITION_TOKENS};
use super::kv::{DECODE, LAYERS, PREFILL};
use super::world::World;

#[test]
fn what_comes_ends_where_the_proofs_differ() {
    let world = World::new();
    let mut decode = Engine::attach(&world.socket, "decode-0", DECODE);
    let mut prefill = Engine::attach(&world.socket, "prefill-0", PREFILL);
    world.until_attached("prefill-0");
    let tokens: Vec<u32> = (0..100).collect();
    // Where the prompt differs from the turn; what may come of it.
    for (number, (at, comes)) in [
        (100, Some(96)),
        (99, Some(96)),
        (64, Some(64)),
        (63, Some(48)),
        (16, Some(16)),
        (15, None),
        (0, None),
    ]
    .into_iter()
    .enumerate()
    {
        for verb in [Verb::Read, Verb::Write] {
            let number = 2 * number as u128 + u128::from(verb == Verb::Read);
            let job = Job { direction: Direction::DecodeToPrefill, ..Job::new(number, verb, 100) };
            let (from, to) = (decode.allocate(100), prefill.allocate(100));
            decode.hold(&job, &from, proofs(&tokens, POSITION_TOKENS));
            (0..LAYERS).for_each(|layer| decode.compute(&job, &from, layer));
            decode.filled(&job);
            decode.sessions[0].renew(job.id).unwrap();
            let is_held = |engine: &Engine| {
                engine
                    .told
                    .iter()
                    .any(|event| matches!(event, ToEngine::LeaseLeft { id, .. } if *id == job.id))
            };
            decode.hear_until(is_held);
            let mut prompt = tokens.clone();
            if let Some(token) = prompt.get_mut(at) {
                *token += 1;
            }
            prefill.receive(&job, "decode-0", &to, proofs(&prompt, POSITION_TOKENS));
            while prefill.outcome(job.attempt()).is_none() {
                decode.hear_once();
                prefill.hear_once();
            }
            match comes {
                Some(end_token) => {
                    assert_eq!(prefill.outcome(job.attempt()), Some(true), "{:?}", prefill.told);
                    assert!(prefill.was_told(&ToEngine::Cut { attempt: job.attempt(), end_token }));
                    assert_eq!(prefill.wrong(&job, &to, end_token), 0);
                }
                None => {
                    let subject = Subject::Receive(job.attempt());
                    assert!(prefill.was_told(&ToEngine::Refused { subject, why: Refused::Unproven }));
                    world.node.handle().release(job.id).unwrap();
                }
            }
            if comes.is_some() {
                prefill.take_over(&to);
                prefill.free(&to);
            }
            decode.hear_until(|decode| decode.named.is_empty());
        }
    }
}

#[test]
fn a_hold_without_proofs_gives_nothing_to_who_asks_for_them() {
    let world = World::new();
    let mut decode = Engine::attach(&world.socket, "decode-0", DECODE);
    let mut prefill = Engine::attach(&world.socket, "prefill-0", PREFILL);
    world.until_attached("prefill-0");
    let job = Job::new(1, Verb::Read, 64);
    let (from, to) = (decode.allocate(64), prefill.allocate(64));
    decode.hold(&job, &from, Vec::new());
    decode.filled(&job);
    prefill.receive(&job, "decode-0", &to, proofs(&[1; 64], POSITION_TOKENS));
    let subject = Subject::Receive(job.attempt());
    prefill.hear_until(|prefill| prefill.was_told(&ToEngine::Refused { subject, why: Refused::Unproven }));
}

#[test]
fn a_hold_with_proofs_gives_nothing_to_who_shows_none() {
    let world = World::new();
    let mut decode = Engine::attach(&world.socket, "decode-0", DECODE);
    let mut prefill = Engine::attach(&world.socket, "prefill-0", PREFILL);
    world.until_attached("prefill-0");
    let job = Job::new(1, Verb::Read, 64);
    let (from, to) = (decode.allocate(64), prefill.allocate(64));
    decode.hold(&job, &from, proofs(&[1; 64], POSITION_TOKENS));
    decode.filled(&job);
    decode.sessions[0].renew(job.id).unwrap();
    decode.hear_until(|decode| decode.told.iter().any(|told| matches!(told, ToEngine::LeaseLeft { .. })));
    prefill.receive(&job, "decode-0", &to, Vec::new());
    let subject = Subject::Receive(job.attempt());
    prefill.hear_until(|prefill| prefill.was_told(&ToEngine::Refused { subject, why: Refused::Unproven }));
}
