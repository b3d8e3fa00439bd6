//! The engine: a queue, a batch, a paged KV cache. It decides and computes; the caller waits, moves bytes and talks.
//!
//! The caller's loop: [`Engine::admit`] what fits, fetch the KV it asks for, [`Engine::begin_step`], wait for as long
//! as that says, [`Engine::finish_step`], hand the tokens out. Between begin and finish it may submit, abort, answer
//! reads and hand in fetched KV: blocks are given out only by `admit` and `begin_step`.

mod admission;
mod counts;
mod outside;
mod sequence;
mod step;

use std::collections::VecDeque;
use std::time::Duration;

pub use counts::{Counts, Finish};
pub use outside::Progress;
pub use sequence::{HoldRequest, Remote, SequenceId, Submission};
pub use step::{Emitted, Finished, Held, Kept};

use crate::holds::Holds;
use crate::model::Model;
use crate::pool::{BlockCounts, BlockId, BlockPool};
use crate::slab::{KvMemory, Slab};
use crate::time::{TimeModel, TimeModelError};
use crate::tokens::Token;
use sequence::Sequence;
use thiserror::Error;

/// What an engine is built with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineConfig {
    /// The model it runs.
    pub model: Model,
    /// Tokens a KV block.
    pub block_tokens: usize,
    /// KV blocks, the one set aside included.
    pub blocks: usize,
    /// Sequences in the batch or waiting for remote KV.
    pub max_sequences: usize,
    /// Tokens one step computes; longer prompts take several steps.
    pub max_step_tokens: usize,
    /// Prompt and answer together.
    pub max_model_tokens: usize,
    /// Whether full blocks are found again by later prompts.
    pub prefix_caching: bool,
    /// How long things take.
    pub time: TimeModel,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            model: Model::default(),
            block_tokens: 16,
            blocks: 4_096,
            max_sequences: 64,
            max_step_tokens: 2_048,
            max_model_tokens: 32_768,
            prefix_caching: true,
            time: TimeModel::default(),
        }
    }
}

/// Why an engine cannot be built.
#[derive(Debug, Error, PartialEq)]
pub enum EngineConfigError {
    /// A setting that must not be 0 is.
    #[error("{0} is 0: use 1 or more")]
    Zero(&'static str),
    /// The longest sequence must fit, or it could never run.
    #[error(
        "max_model_len is {max_model_tokens} tokens, but {blocks} blocks of {block_tokens} tokens (one is set aside) \
         hold only {held}: raise blocks or lower max_model_len"
    )]
    TooFewBlocks {
        /// Asked for.
        max_model_tokens: usize,
        /// Asked for.
        blocks: usize,
        /// Asked for.
        block_tokens: usize,
        /// Tokens that fit.
        held: usize,
    },
    /// The blocks must fit the memory that is given.
    #[error(
        "{blocks} blocks of {block_tokens} tokens do not fit {memory_bytes} bytes of memory: lower blocks"
    )]
    MemoryTooSmall {
        /// Asked for.
        blocks: usize,
        /// Asked for.
        block_tokens: usize,
        /// Given.
        memory_bytes: usize,
    },
    /// See [`TimeModelError`].
    #[error(transparent)]
    Time(#[from] TimeModelError),
}

impl EngineConfig {
    /// Whether an engine can be built with it.
    pub fn check(&self) -> Result<(), EngineConfigError> {
        let numbers = [
            ("block_tokens", self.block_tokens),
            ("blocks", self.blocks),
            ("max_num_seqs", self.max_sequences),
            ("max_step_tokens", self.max_step_tokens),
            ("max_model_len", self.max_model_tokens),
        ];
        if let Some((name, _)) = numbers.into_iter().find(|(_, number)| *number == 0) {
            return Err(EngineConfigError::Zero(name));
        }
        self.time.check()?;
        let held = (self.blocks - 1) * self.block_tokens;
        if held < self.max_model_tokens {
            let Self { max_model_tokens, blocks, block_tokens, .. } = *self;
            return Err(EngineConfigError::TooFewBlocks { max_model_tokens, blocks, block_tokens, held });
        }
        Ok(())
    }
}

/// How much an engine has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Occupancy {
    /// Sequences in the batch.
    pub running: usize,
    /// Not admitted yet.
    pub waiting: usize,
    /// Admitted, waiting for KV from another engine.
    pub loading: usize,
    /// Blocks by state.
    pub blocks: BlockCounts,
    /// Blocks kept for readers, part of `blocks.used`.
    pub held_blocks: usize,
    /// Number of holds.
    pub holds: usize,
}

/// KV that an admitted sequence wants from another engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// Who wants it.
    pub sequence: SequenceId,
    /// The first token that is wanted; the first of the blocks begins with it.
    pub first_token: usize,
    /// Where it goes, in order. They match the remote blocks from the end. Empty when nothing is worth fetching:
    /// then the sequence runs already, and the remote blocks are only to be let go.
    pub blocks: Vec<BlockId>,
}

/// What came of a [`Load`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded<'a> {
    /// The bytes of its blocks, end to end.
    Bytes(&'a [u8]),
    /// The blocks count as filled with whatever is in them: a transfer that silently did not happen.
    AsTheyAre,
    /// Nothing came; compute the tokens here.
    Nothing,
    /// The bytes of so many leading tokens, cached ones included, were put in place by somebody else.
    Tokens(usize),
    /// Nothing came, and something may still: compute in other blocks. The sequence is the next to be admitted.
    ComputeElsewhere,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    slab: Slab,
    pool: BlockPool,
    holds: Holds,
    waiting: VecDeque<Sequence>,
    loading: Vec<Sequence>,
    running: Vec<Sequence>,
    /// Tokens computed by the step under way, handed out when it ends.
    pending: Vec<(SequenceId, Token)>,
    /// One block's bytes, for reading.
    scratch: Vec<u8>,
    counts: Counts,
}

impl Engine {
    /// An idle engine, in memory of its own.
    pub fn new(config: EngineConfig) -> Result<Self, EngineConfigError> {
        config.check()?;
        let entry_bytes = config.model.kv_bytes_per_token();
        Ok(Self::with_slab(config, Slab::new(config.blocks, config.block_tokens, entry_bytes)))
    }

    /// An idle engine in memory that others reach too.
    pub fn in_memory(config: EngineConfig, memory: Box<dyn KvMemory>) -> Result<Self, EngineConfigError> {
        config.check()?;
        let EngineConfig { blocks, block_tokens, .. } = config;
        let memory_bytes = memory.len_bytes();
        let slab = Slab::within(memory, blocks, block_tokens, config.model.kv_bytes_per_token());
        let slab = slab.ok_or(EngineConfigError::MemoryTooSmall { blocks, block_tokens, memory_bytes })?;
        Ok(Self::with_slab(config, slab))
    }

    fn with_slab(config: EngineConfig, slab: Slab) -> Self {
        Self {
            scratch: vec![0; slab.block_bytes()],
            slab,
            pool: BlockPool::new(config.blocks),
            holds: Holds::default(),
            waiting: VecDeque::new(),
            loading: Vec::new(),
            running: Vec::new(),
            pending: Vec::new(),
            counts: Counts::default(),
            config,
        }
    }

    /// What it was built with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// What it did so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// What it has to do now.
    pub fn occupancy(&self) -> Occupancy {
        Occupancy {
            running: self.running.len(),
            waiting: self.waiting.len(),
            loading: self.loading.len(),
            blocks: self.pool.counts(),
            held_blocks: self.holds.blocks(),
            holds: self.holds.len(),
        }
    }

    /// Queues a sequence. Its prompt must hold a token and leave room for another below `max_model_tokens`.
    pub fn submit(&mut self, id: SequenceId, submission: Submission, now: Duration) {
        debug_assert!(!submission.prompt.is_empty(), "an empty prompt has no KV to answer from");
        self.waiting.push_back(Sequence::new(id, submission, &self.config, now));
    }

    /// Ends a sequence wherever it is and gives its blocks back. Unknown and finished ones are left alone.
    pub fn abort(&mut self, id: SequenceId, why: Finish) -> bool {
        let wanted = |sequence: &Sequence| sequence.id == id;
        let found = match (
            self.waiting.iter().position(wanted),
            self.loading.iter().position(wanted),
            self.running.iter().position(wanted),
        ) {
            (Some(at), ..) => self.waiting.remove(at),
            (_, Some(at), _) => Some(self.loading.remove(at)),
            (.., Some(at)) => Some(self.running.remove(at)),
            _ => None,
        };
        self.pending.retain(|(pending, _)| *pending != id);
        let Some(sequence) = found else { return false };
        self.pool.release(&sequence.blocks);
        self.counts.finished(why);
        true
    }

    /// Ends a hold because its reader is done. False when it is unknown or has expired.
    pub fn release_hold(&mut self, name: &str) -> bool {
        let Some(blocks) = self.holds.release(name) else {
            self.counts.late_releases += 1;
            return false;
        };
        self.pool.release(&blocks);
        true
    }

    /// Ends the holds whose time is over.
    pub fn expire_holds(&mut self, now: Duration) {
        for blocks in self.holds.expire(now) {
            self.pool.release(&blocks);
            self.counts.holds_expired += 1;
        }
    }

    /// When [`Self::expire_holds`] has work next.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.holds.next_expiry()
    }
}
