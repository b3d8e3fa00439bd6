//! What an engine did.

use crate::histogram::Histogram;

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// By itself.
    Stop,
    /// By its token limit.
    Length,
    /// Its client left.
    Abort,
    /// Something failed.
    Error,
}

impl Finish {
    /// All of them, in the order of vLLM's metrics.
    pub const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    /// vLLM's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

const FIRST_TOKEN_S: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const BETWEEN_TOKENS_S: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const REQUEST_TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0,
    100_000.0,
];
const REQUEST_S: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];

/// Counters since the start. Prompt tokens are counted once per sequence, with its first token.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    /// Prompts that got their first token.
    pub prompts: u64,
    /// Prompt tokens computed here.
    pub prompt_tokens_computed: u64,
    /// Prompt tokens found in the prefix cache.
    pub prompt_tokens_cached: u64,
    /// Prompt tokens whose KV came from another engine.
    pub prompt_tokens_external: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens found there.
    pub prefix_hits: u64,
    /// Prompt tokens that another engine could have had.
    pub external_queries: u64,
    /// Prompt tokens that another engine had.
    pub external_hits: u64,
    /// Sequences thrown out of the batch because blocks ran out.
    pub preemptions: u64,
    /// Holds that nobody ended in time.
    pub holds_expired: u64,
    /// Ends of holds that were unknown or had expired.
    pub late_releases: u64,
    /// Engine steps.
    pub steps: u64,
    /// By [`Finish`], in the order of [`Finish::ALL`].
    pub finished: [u64; 4],
    /// From arrival to the first token, seconds.
    pub first_token_s: Histogram,
    /// Between two tokens, seconds.
    pub between_tokens_s: Histogram,
    /// From arrival to the last token, seconds.
    pub request_s: Histogram,
    /// Prompt tokens a request.
    pub request_prompt_tokens: Histogram,
    /// Generated tokens a request.
    pub request_generation_tokens: Histogram,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            prompts: 0,
            prompt_tokens_computed: 0,
            prompt_tokens_cached: 0,
            prompt_tokens_external: 0,
            generation_tokens: 0,
            prefix_queries: 0,
            prefix_hits: 0,
            external_queries: 0,
            external_hits: 0,
            preemptions: 0,
            holds_expired: 0,
            late_releases: 0,
            steps: 0,
            finished: [0; 4],
            first_token_s: Histogram::new(FIRST_TOKEN_S),
            between_tokens_s: Histogram::new(BETWEEN_TOKENS_S),
            request_s: Histogram::new(REQUEST_S),
            request_prompt_tokens: Histogram::new(REQUEST_TOKENS),
            request_generation_tokens: Histogram::new(REQUEST_TOKENS),
        }
    }
}

impl Counts {
    pub(super) fn finished(&mut self, why: Finish) {
        self.finished[why as usize] += 1;
    }
}
