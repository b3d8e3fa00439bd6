//! One answer in the making.

use std::time::Duration;

use super::EngineConfig;
use crate::model::Sampling;
use crate::pool::{BlockHash, BlockId, block_hash};
use crate::tokens::Token;

/// Names a sequence; the caller keeps ids unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// KV of the prompt that another engine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Leading tokens of the prompt that it has.
    pub tokens: usize,
    /// With fewer tokens to fetch than this, computing them here is preferred.
    pub threshold: usize,
}

/// Keep the blocks after the end, for a reader on another engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldRequest {
    /// What the reader calls it.
    pub name: String,
    /// From the end of the answer.
    pub lease: Duration,
    /// Whether to hold also when the answer ended by itself rather than by its token limit.
    pub when_stopped: bool,
}

/// What to answer, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Submission {
    /// At least one token.
    pub prompt: Vec<Token>,
    /// At least one.
    pub max_tokens: usize,
    /// No end before so many tokens.
    pub min_tokens: usize,
    /// No end before `max_tokens`.
    pub ignore_end: bool,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// Which of several answers to one request.
    pub choice: u32,
    /// Prompts share cached blocks only with prompts of the same salt.
    pub salt: u64,
    /// KV to fetch first.
    pub remote: Option<Remote>,
    /// Blocks to keep afterwards.
    pub hold: Option<HoldRequest>,
    /// Hand the blocks of a whole answer to the caller: see [`super::Kept`].
    pub keep: bool,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub id: SequenceId,
    pub spec: Submission,
    /// The prompt and all tokens after it.
    pub tokens: Vec<Token>,
    pub prompt_tokens: usize,
    /// Leading tokens whose entries are in the blocks.
    pub computed: usize,
    pub blocks: Vec<BlockId>,
    /// Names of its full blocks, as far as they were needed.
    pub names: Vec<BlockHash>,
    /// Leading blocks whose names the pool knows.
    pub published: usize,
    /// Prompt tokens found in the prefix cache when first admitted.
    pub cached: usize,
    /// Prompt tokens fetched from another engine.
    pub external: usize,
    /// Whether it was admitted before: a preempted sequence is not counted twice.
    pub admitted: bool,
    pub arrived: Duration,
    pub last_token_at: Option<Duration>,
}

impl Sequence {
    pub fn new(id: SequenceId, mut spec: Submission, config: &EngineConfig, now: Duration) -> Self {
        let tokens = std::mem::take(&mut spec.prompt);
        spec.max_tokens = spec.max_tokens.min(config.max_model_tokens.saturating_sub(tokens.len())).max(1);
        Self {
            id,
            prompt_tokens: tokens.len(),
            spec,
            tokens,
            computed: 0,
            blocks: Vec::new(),
            names: Vec::new(),
            published: 0,
            cached: 0,
            external: 0,
            admitted: false,
            arrived: now,
            last_token_at: None,
        }
    }

    pub fn output_tokens(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    /// Tokens whose entries are still to be computed.
    pub fn missing(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// It has lost its blocks.
    pub fn start_anew(&mut self) {
        self.blocks.clear();
        self.computed = 0;
    }

    /// Names its full blocks among the first `tokens` tokens.
    pub fn name_blocks(&mut self, tokens: usize, block_tokens: usize) {
        for block in self.names.len()..tokens / block_tokens {
            let parent = self.names.last().copied().unwrap_or(self.spec.salt);
            let inside = &self.tokens[block * block_tokens..(block + 1) * block_tokens];
            self.names.push(block_hash(parent, inside));
        }
    }
}
