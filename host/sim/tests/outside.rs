//! Blocks that others reach too: named, kept, filled by somebody else.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_sim::engine::{Emitted, EngineConfigError, Loaded, Remote, SequenceId, Submission};
use sluice_sim::oracle::{self, Params};
use sluice_sim::slab::KvMemory;
use sluice_sim::tokens::{Token, tokenize, words};
use sluice_sim::{Engine, EngineConfig, TimeModel};

const ONE: SequenceId = SequenceId(1);
const BLOCK_BYTES: usize = 4 * 64;

/// Memory that two engines reach.
#[derive(Debug, Clone)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn new(blocks: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![0; blocks * BLOCK_BYTES])))
    }
}

impl KvMemory for Shared {
    fn len_bytes(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.lock().unwrap().read(offset, into);
    }

    fn write(&mut self, offset: usize, from: &[u8]) {
        self.0.lock().unwrap().write(offset, from);
    }
}

fn config() -> EngineConfig {
    EngineConfig {
        block_tokens: 4,
        blocks: 17,
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

fn drain(engine: &mut Engine) -> Vec<Emitted> {
    let mut all = Vec::new();
    loop {
        engine.admit();
        if engine.begin_step().is_none() {
            return all;
        }
        all.extend(engine.finish_step(Duration::ZERO));
    }
}

fn tokens(answer: &[Emitted]) -> Vec<Token> {
    answer.iter().map(|emitted| emitted.token).collect()
}

/// An engine that waits for 9 tokens from elsewhere, and its blocks for them.
fn waiting(memory: Shared, prompt: &str) -> (Engine, Vec<u32>) {
    let mut engine = Engine::in_memory(config(), Box::new(memory)).unwrap();
    let remote = Some(Remote { tokens: 9, threshold: 0 });
    engine.submit(ONE, Submission { remote, ..submission(prompt, 8) }, Duration::ZERO);
    let loads = engine.admit();
    (engine, loads[0].blocks.clone())
}

#[test]
fn what_somebody_else_put_in_place_counts_up_to_where_it_is_said_to() {
    let prompt = words(6, 9);
    let mut producer = Engine::new(config()).unwrap();
    producer.submit(ONE, Submission { keep: true, ..submission(&prompt, 1) }, Duration::ZERO);
    let kept = drain(&mut producer).pop().unwrap().finished.unwrap().kept.unwrap();
    assert_eq!(kept.tokens, tokenize(&prompt));
    for (copied, said, is_right) in [(3, 9, true), (2, 8, true), (1, 4, true), (0, 0, true), (2, 9, false)] {
        let mut memory = Shared::new(17);
        let (mut engine, blocks) = waiting(memory.clone(), &prompt);
        for (from, to) in kept.blocks.iter().zip(&blocks).take(copied) {
            memory.write(*to as usize * BLOCK_BYTES, &producer.read_block(*from).unwrap());
        }
        assert!(!engine.loaded(ONE, Loaded::Tokens(10)));
        assert!(engine.loaded(ONE, Loaded::Tokens(said)));
        assert_eq!(engine.progress(ONE).unwrap().computed, said);
        let answer = drain(&mut engine);
        assert_eq!(tokens(&answer) == right(&prompt, 8), is_right, "{copied} blocks, {said} tokens");
        assert_eq!(answer[0].cached_tokens, said);
    }
    producer.release(&kept.blocks);
    assert_eq!(producer.occupancy().blocks.used, 0);
}

#[test]
fn what_may_still_be_written_to_is_computed_elsewhere_and_kept_until_it_is_given_back() {
    let prompt = words(6, 9);
    let mut memory = Shared::new(17);
    let (mut engine, blocks) = waiting(memory.clone(), &prompt);
    engine.retain(&blocks);
    assert!(engine.loaded(ONE, Loaded::ComputeElsewhere));
    assert_eq!((engine.progress(ONE), engine.occupancy().waiting), (None, 1));
    engine.admit();
    assert!(engine.progress(ONE).unwrap().blocks.iter().all(|block| !blocks.contains(block)));
    let generations: Vec<_> = blocks.iter().map(|block| engine.generation(*block)).collect();
    for block in &blocks {
        memory.write(*block as usize * BLOCK_BYTES, &[7; BLOCK_BYTES]);
    }
    assert_eq!(tokens(&drain(&mut engine)), right(&prompt, 8));
    assert_eq!(engine.occupancy().blocks.used, blocks.len());
    assert!(blocks.iter().zip(&generations).all(|(block, use_)| engine.generation(*block) == *use_));
    engine.release(&blocks);
    assert_eq!(engine.occupancy().blocks.used, 0);
}

#[test]
fn an_answer_that_is_not_whole_keeps_nothing() {
    let mut engine = Engine::new(config()).unwrap();
    engine.submit(ONE, Submission { keep: true, ..submission("a prompt", 8) }, Duration::ZERO);
    engine.admit();
    engine.begin_step();
    engine.abort(ONE, sluice_sim::engine::Finish::Abort);
    engine.finish_step(Duration::ZERO);
    assert_eq!(engine.occupancy().blocks.used, 0);
}

#[test]
fn memory_that_is_too_small_is_refused() {
    let refused = Engine::in_memory(config(), Box::new(vec![0; 17 * BLOCK_BYTES - 1])).unwrap_err();
    assert!(matches!(refused, EngineConfigError::MemoryTooSmall { blocks: 17, .. }), "{refused}");
    assert!(refused.to_string().contains("lower blocks"));
}
