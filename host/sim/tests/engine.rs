//! The engine against the oracle, under whatever load: answers stay right and no block is lost.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use sluice_sim::engine::{Emitted, Finish, HoldRequest, Loaded, Remote, SequenceId, Submission};
use sluice_sim::oracle::{self, Params};
use sluice_sim::tokens::{Token, tokenize, words};
use sluice_sim::{Engine, EngineConfig, TimeModel};

fn config(blocks: usize) -> EngineConfig {
    EngineConfig {
        block_tokens: 4,
        blocks,
        max_sequences: 4,
        max_step_tokens: 16,
        max_model_tokens: 64,
        time: TimeModel { time_scale: 0.0, ..TimeModel::default() },
        ..EngineConfig::default()
    }
}

fn submission(prompt: &str, max_tokens: usize) -> Submission {
    Submission { prompt: tokenize(prompt), max_tokens, ..Submission::default() }
}

fn right(prompt: &str, max_tokens: usize) -> Vec<Token> {
    oracle::complete(&tokenize(prompt), max_tokens, &Params::default())
}

/// Runs until nothing is left to do.
fn drain(engine: &mut Engine) -> HashMap<SequenceId, Vec<Emitted>> {
    let mut answers: HashMap<SequenceId, Vec<Emitted>> = HashMap::new();
    loop {
        engine.admit();
        if engine.begin_step().is_none() {
            return answers;
        }
        for emitted in engine.finish_step(Duration::ZERO) {
            answers.entry(emitted.sequence).or_default().push(emitted);
        }
    }
}

fn tokens(answer: &[Emitted]) -> Vec<Token> {
    answer.iter().map(|emitted| emitted.token).collect()
}

fn answer(engine: &mut Engine, prompt: &str, max_tokens: usize) -> Vec<Emitted> {
    engine.submit(SequenceId(900), submission(prompt, max_tokens), Duration::ZERO);
    drain(engine).remove(&SequenceId(900)).unwrap()
}

#[test]
fn a_cached_prefix_gives_the_same_answer_and_is_counted() {
    let mut engine = Engine::new(config(32)).unwrap();
    let prompt = words(1, 13);
    let first = answer(&mut engine, &prompt, 10);
    let second = answer(&mut engine, &prompt, 10);
    assert_eq!(tokens(&first), right(&prompt, 10));
    assert_eq!(tokens(&second), tokens(&first));
    assert_eq!((first[0].cached_tokens, second[0].cached_tokens), (0, 12));
    assert_eq!(engine.counts().prompt_tokens_cached, 12);
    assert_eq!(engine.counts().prompt_tokens_computed, 14);
}

#[test]
fn a_prompt_of_whole_blocks_still_computes_its_last_block() {
    let mut engine = Engine::new(config(32)).unwrap();
    let prompt = words(1, 12);
    answer(&mut engine, &prompt, 3);
    assert_eq!(answer(&mut engine, &prompt, 3)[0].cached_tokens, 8);
}

#[test]
fn salts_and_switched_off_caches_share_nothing() {
    let prompt = words(1, 13);
    let mut engine = Engine::new(config(32)).unwrap();
    answer(&mut engine, &prompt, 3);
    engine.submit(SequenceId(1), Submission { salt: 7, ..submission(&prompt, 3) }, Duration::ZERO);
    assert_eq!(drain(&mut engine)[&SequenceId(1)][0].cached_tokens, 0);

    let mut engine = Engine::new(EngineConfig { prefix_caching: false, ..config(32) }).unwrap();
    answer(&mut engine, &prompt, 3);
    assert_eq!(answer(&mut engine, &prompt, 3)[0].cached_tokens, 0);
}

#[test]
fn one_flipped_byte_anywhere_in_the_kv_changes_the_answer() {
    let prompt = words(5, 9);
    let block_bytes = 4 * 64;
    for (block, offset) in [(0, 0), (0, 77), (1, 255), (2, 63)] {
        let (mut prefill, handle) = prefilled(&prompt);
        assert!(prefill.flip_bit(handle[block], offset));
        let bytes: Vec<u8> = handle.iter().flat_map(|block| prefill.read_block(*block).unwrap()).collect();
        assert_eq!(bytes.len(), 3 * block_bytes);
        assert_ne!(
            decoded(&prompt, Loaded::Bytes(&bytes)),
            right(&prompt, 8),
            "block {block}, byte {offset}"
        );
    }
}

#[test]
fn moved_kv_gives_the_right_answer_and_kv_that_never_came_a_wrong_one() {
    let prompt = words(6, 9);
    let (prefill, handle) = prefilled(&prompt);
    let bytes: Vec<u8> = handle.iter().flat_map(|block| prefill.read_block(*block).unwrap()).collect();
    assert_eq!(decoded(&prompt, Loaded::Bytes(&bytes)), right(&prompt, 8));
    assert_eq!(decoded(&prompt, Loaded::Nothing), right(&prompt, 8));
    assert_ne!(decoded(&prompt, Loaded::AsTheyAre), right(&prompt, 8));
}

/// An engine that holds a prompt's KV for a reader, and the blocks.
fn prefilled(prompt: &str) -> (Engine, Vec<u32>) {
    let mut engine = Engine::new(config(32)).unwrap();
    let hold = HoldRequest { name: "p".into(), lease: Duration::from_secs(30), when_stopped: false };
    engine.submit(SequenceId(1), Submission { hold: Some(hold), ..submission(prompt, 1) }, Duration::ZERO);
    let answer = drain(&mut engine).remove(&SequenceId(1)).unwrap();
    let held = answer[0].finished.as_ref().unwrap().held.clone().unwrap();
    assert_eq!((held.tokens, held.expires_at), (tokenize(prompt).len(), Duration::from_secs(30)));
    (engine, held.blocks)
}

fn decoded(prompt: &str, content: Loaded<'_>) -> Vec<Token> {
    let mut engine = Engine::new(config(32)).unwrap();
    let remote = Some(Remote { tokens: tokenize(prompt).len(), threshold: 0 });
    engine.submit(SequenceId(1), Submission { remote, ..submission(prompt, 8) }, Duration::ZERO);
    let loads = engine.admit();
    assert_eq!((loads.len(), loads[0].blocks.len()), (1, 3));
    assert_eq!(engine.begin_step(), None);
    assert!(engine.loaded(loads[0].sequence, content));
    tokens(&drain(&mut engine)[&SequenceId(1)])
}

#[test]
fn too_little_to_fetch_is_computed() {
    let prompt = words(6, 9);
    let mut engine = Engine::new(config(32)).unwrap();
    let remote = Some(Remote { tokens: 5, threshold: 6 });
    engine.submit(SequenceId(1), Submission { remote, ..submission(&prompt, 8) }, Duration::ZERO);
    assert_eq!(engine.admit()[0].blocks, []);
    assert_eq!(tokens(&drain(&mut engine)[&SequenceId(1)]), right(&prompt, 8));
}

#[test]
fn an_abort_during_a_step_or_a_load_gives_everything_back() {
    let mut engine = Engine::new(config(32)).unwrap();
    engine.submit(SequenceId(1), submission("a prompt", 8), Duration::ZERO);
    let remote = Some(Remote { tokens: 8, threshold: 0 });
    engine.submit(SequenceId(2), Submission { remote, ..submission("another!", 8) }, Duration::ZERO);
    engine.admit();
    engine.begin_step();
    assert!(engine.abort(SequenceId(1), Finish::Abort));
    assert!(engine.abort(SequenceId(2), Finish::Abort));
    assert!(!engine.abort(SequenceId(2), Finish::Abort));
    assert_eq!(engine.finish_step(Duration::ZERO), []);
    assert!(!engine.loaded(SequenceId(2), Loaded::AsTheyAre));
    assert_eq!(engine.occupancy().blocks.used, 0);
    assert_eq!(engine.counts().finished, [0, 0, 2, 0]);
}

#[test]
fn decoding_goes_on_beside_a_long_prompt() {
    let mut engine = Engine::new(EngineConfig { max_step_tokens: 4, ..config(32) }).unwrap();
    engine.submit(SequenceId(1), Submission { ignore_end: true, ..submission("abc", 20) }, Duration::ZERO);
    engine.admit();
    engine.begin_step();
    engine.finish_step(Duration::ZERO);
    engine.submit(SequenceId(2), submission(&words(1, 12), 1), Duration::ZERO);
    for step in 1..=4 {
        engine.admit();
        engine.begin_step();
        let emitted = engine.finish_step(Duration::ZERO);
        assert_eq!(emitted.len(), if step == 4 { 2 } else { 1 }, "step {step}");
    }
}

/// What may happen to an engine.
#[derive(Debug, Clone)]
enum Event {
    Submit { prompt: u64, tokens: usize, max_tokens: usize, hold: bool },
    Abort(u64),
    Step,
    Release(u64),
    Expire,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0_u64..4, 1_usize..24, 1_usize..16, any::<bool>())
            .prop_map(|(prompt, tokens, max_tokens, hold)| Event::Submit { prompt, tokens, max_tokens, hold }),
        1 => (0_u64..20).prop_map(Event::Abort),
        8 => Just(Event::Step),
        1 => (0_u64..20).prop_map(Event::Release),
        1 => Just(Event::Expire),
    ]
}

/// Prompts that share prefixes.
fn prompt_of(prompt: u64, tokens: usize) -> String {
    words(prompt, tokens)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn blocks_are_never_lost_and_answers_never_wrong(events in proptest::collection::vec(event(), 1..80)) {
        // 17 blocks hold one longest sequence: eviction and preemption are the rule.
        let mut engine = Engine::new(config(17)).unwrap();
        let mut asked = HashMap::new();
        let mut got: HashMap<SequenceId, Vec<Emitted>> = HashMap::new();
        let mut aborted = Vec::new();
        let far = Duration::from_secs(1_000);
        for (at, event) in events.into_iter().enumerate() {
            match event {
                Event::Submit { prompt, tokens, max_tokens, hold } => {
                    let id = SequenceId(at as u64);
                    let prompt = prompt_of(prompt, tokens);
                    let hold = hold.then(|| HoldRequest {
                        name: format!("{at}"), lease: Duration::from_secs(1), when_stopped: true,
                    });
                    engine.submit(id, Submission { hold, ..submission(&prompt, max_tokens) }, Duration::ZERO);
                    asked.insert(id, (prompt, max_tokens));
                }
                Event::Abort(id) => {
                    if engine.abort(SequenceId(id), Finish::Abort) {
                        aborted.push(SequenceId(id));
                    }
                }
                Event::Step => {
                    engine.admit();
                    engine.begin_step();
                    for emitted in engine.finish_step(Duration::ZERO) {
                        got.entry(emitted.sequence).or_default().push(emitted);
                    }
                }
                Event::Release(name) => { engine.release_hold(&name.to_string()); }
                Event::Expire => engine.expire_holds(far),
            }
            let occupancy = engine.occupancy();
            prop_assert_eq!(occupancy.blocks.free + occupancy.blocks.used, occupancy.blocks.total);
            prop_assert!(occupancy.held_blocks <= occupancy.blocks.used);
        }
        for _ in 0..100 {
            engine.expire_holds(far);
            for (id, emitted) in drain(&mut engine) {
                got.entry(id).or_default().extend(emitted);
            }
        }
        engine.expire_holds(far);
        prop_assert_eq!(engine.occupancy().blocks.used, 0);
        prop_assert_eq!(engine.occupancy().waiting + engine.occupancy().running, 0);
        for (id, (prompt, max_tokens)) in asked {
            if !aborted.contains(&id) {
                prop_assert_eq!(tokens(&got[&id]), right(&prompt, max_tokens));
            }
        }
    }
}
