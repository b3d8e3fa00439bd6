//! What a worker is expected to cost a request, in milliseconds.

use sluice_policy_sdk::{Facts, Row, Worker};

use crate::Settings;

/// Where no output length is known in advance, answers are taken to be about this long: what most published
/// benchmarks ask for.
const TYPICAL_OUTPUT_TOKENS: u32 = 128;
/// So many more sequences in the batch double the time of a decode step. Decoding is bound by memory bandwidth,
/// so a step grows far slower than its batch.
const STEP_DOUBLING_REQUESTS: f32 = 32.0;
/// What staying with the session's worker is worth: more than the noise of measured figures, less than any queue.
const AFFINITY_MS: f32 = 0.5;
/// A leg that fails is sent again elsewhere, after about this long.
const RETRY_MS: f32 = 1_000.0;

/// The request's side of all costs, worked out once.
pub struct Costs<'a> {
    settings: &'a Settings,
    prompt_tokens: u32,
    output_tokens: f32,
    needed_blocks: u32,
    block_tokens: f32,
    kv_bytes_per_token: f32,
    /// The workers that know the session.
    last_prefill: Option<Row>,
    holder: Option<Row>,
}

impl<'a> Costs<'a> {
    pub fn of(facts: &Facts, settings: &'a Settings) -> Self {
        let (request, session) = (&facts.request, facts.session.as_ref());
        Self {
            settings,
            prompt_tokens: request.prompt_tokens,
            output_tokens: request.max_output_tokens.min(TYPICAL_OUTPUT_TOKENS) as f32,
            needed_blocks: facts.blocks_for(request.prompt_tokens.saturating_add(request.max_output_tokens)),
            block_tokens: facts.block_tokens as f32,
            kv_bytes_per_token: facts.kv_bytes_per_token as f32,
            last_prefill: session.and_then(|session| session.last_prefill),
            holder: session.and_then(|session| session.holder),
        }
    }

    /// Of prefilling for another worker.
    pub fn prefill_ms(&self, worker: Worker<'_>) -> f32 {
        self.computing_ms(worker) + trouble_ms(worker) - affinity_ms(self.last_prefill, worker)
    }

    /// Of decoding what another worker prefilled: fetching the KV blocks, then generating.
    pub fn decode_ms(&self, worker: Worker<'_>) -> f32 {
        self.handoff_ms(worker) + self.generating_ms(worker) + trouble_ms(worker)
            - affinity_ms(self.holder, worker)
    }

    /// Of doing both.
    pub fn alone_ms(&self, worker: Worker<'_>) -> f32 {
        let trouble = 2.0 * trouble_ms(worker);
        self.computing_ms(worker) + self.generating_ms(worker) + trouble - affinity_ms(self.holder, worker)
    }

    /// What is queued, then this prompt's uncached part.
    fn computing_ms(&self, worker: Worker<'_>) -> f32 {
        let uncached = worker.uncached_tokens(self.prompt_tokens);
        (worker.prefill_backlog_tokens() as f32 + uncached as f32) * self.token_ms(worker)
    }

    /// The measured step lags behind; the booked requests are counted at once. KV blocks that are not there mean that
    /// some sequence will be preempted, and so many tokens computed again.
    fn generating_ms(&self, worker: Worker<'_>) -> f32 {
        let step = measured_or(worker.decode_step_ms(), self.settings.assumed_decode_step_ms);
        let requests = worker.running().saturating_add(worker.waiting()) as f32;
        let free = if worker.kv_blocks_total() == 0 { u32::MAX } else { worker.kv_blocks_free() };
        let missing = self.needed_blocks.saturating_sub(free) as f32;
        step * (1.0 + requests / STEP_DOUBLING_REQUESTS) * self.output_tokens
            + missing * self.block_tokens * self.token_ms(worker)
    }

    /// What was measured beyond the bytes' own time, and that time where the link's rate is known.
    fn handoff_ms(&self, worker: Worker<'_>) -> f32 {
        const BYTES_PER_MS_AT_1_MB_PER_S: f32 = 1_000.0;
        let bytes = worker.uncached_tokens(self.prompt_tokens) as f32 * self.kv_bytes_per_token;
        let rate = worker.link_mb_per_s() * BYTES_PER_MS_AT_1_MB_PER_S;
        worker.pull_overhead_ms().max(0.0) + if rate > 0.0 { bytes / rate } else { 0.0 }
    }

    fn token_ms(&self, worker: Worker<'_>) -> f32 {
        1_000.0 / measured_or(worker.prefill_tokens_per_s(), self.settings.assumed_prefill_tokens_per_s)
    }
}

/// A tie, or nearly one, goes to the worker that knows the session.
fn affinity_ms(known: Option<Row>, worker: Worker<'_>) -> f32 {
    if known == Some(worker.row()) { AFFINITY_MS } else { 0.0 }
}

/// Expected failures before a success, at the price of one. A worker that always fails still has a price, not an
/// infinite one; not a number counts as no failure: `max` takes the other side.
fn trouble_ms(worker: Worker<'_>) -> f32 {
    let rate = f32::min(worker.failure_rate().max(0.0), 0.95);
    rate / (1.0 - rate) * RETRY_MS
}

fn measured_or(measured: f32, assumed: u32) -> f32 {
    if measured > 0.0 { measured } else { assumed as f32 }
}
