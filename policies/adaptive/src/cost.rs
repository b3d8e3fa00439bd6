//! What a worker is expected to cost a request, in milliseconds.

use sluice_policy_sdk::pick::Pair;
use sluice_policy_sdk::{Ability, Facts, Role, Row, Worker, Workers};

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

/// Workers that are looked at together.
pub const BLOCK: usize = 8;
/// A bit for each.
pub const ALL: u32 = (1 << BLOCK) - 1;

/// The request's side of all costs, worked out once.
pub struct Costs {
    assumed_prefill_tokens_per_s: f32,
    assumed_decode_step_ms: f32,
    prompt_tokens: u32,
    near_tokens: u32,
    output_tokens: f32,
    needed_blocks: u32,
    block_tokens: f32,
    kv_bytes_per_token: f32,
    /// Whether KV is pushed to workers that can be pushed to.
    pushes: bool,
    /// The workers that know the session.
    last_prefill: Option<Row>,
    holder: Option<Row>,
}

impl Costs {
    pub fn of(facts: &Facts, settings: &Settings) -> Self {
        let (request, session) = (&facts.request, facts.session.as_ref());
        Self {
            assumed_prefill_tokens_per_s: settings.assumed_prefill_tokens_per_s as f32,
            assumed_decode_step_ms: settings.assumed_decode_step_ms as f32,
            prompt_tokens: request.prompt_tokens,
            near_tokens: settings.unified_below_tokens,
            output_tokens: request.max_output_tokens.min(TYPICAL_OUTPUT_TOKENS) as f32,
            needed_blocks: facts.blocks_for(request.prompt_tokens.saturating_add(request.max_output_tokens)),
            block_tokens: facts.block_tokens as f32,
            kv_bytes_per_token: facts.kv_bytes_per_token as f32,
            pushes: settings.push && !settings.late_binding,
            last_prefill: session.and_then(|session| session.last_prefill),
            holder: session.and_then(|session| session.holder),
        }
    }

    /// The same where the prefill is done, and so nothing is left to push.
    pub fn by_pull(self) -> Self {
        Self { pushes: false, ..self }
    }

    /// Which workers of a block could still be chosen, once there is a pair to beat: those whose queues alone do not
    /// cost more, and those that have nearly all of the prompt. One bit a worker, the first one's the lowest. Column by
    /// column, so that the compiler takes several workers at a time, and with the costs multiplied out: no division, and
    /// few results that a host has to look at for being a number. `None` at the end of the table, where there is no whole
    /// block.
    pub fn worth(&self, table: &Workers, from: usize, to_beat: &Pair<'_>) -> Option<u32> {
        let (role, group) = (block(&table.role, from)?, block(&table.group, from)?);
        let (backlog, cached) =
            (block(&table.prefill_backlog_tokens, from)?, block(&table.cached_tokens, from)?);
        let (running, waiting) = (block(&table.running, from)?, block(&table.waiting, from)?);
        let (rate, step) = (block(&table.prefill_tokens_per_s, from)?, block(&table.decode_step_ms, from)?);
        let nearly_all = self.prompt_tokens.saturating_sub(self.near_tokens);
        let (pair_group, prefill) = (to_beat.prefill.group(), Role::Prefill.number());
        // Twice: one for the session's worker, one for what rounding makes of large costs.
        let margin = 2.0 * AFFINITY_MS;
        let most_prefilling = (to_beat.prefill_cost + margin) / 1_000.0;
        let most_decoding = (to_beat.decode_cost + margin) * STEP_DOUBLING_REQUESTS / self.output_tokens;
        let mut worth = [false; BLOCK];
        for at in 0..BLOCK {
            let uncached = self.prompt_tokens.saturating_sub(cached[at]);
            let tokens = signed(backlog[at].saturating_add(uncached));
            let requests = signed(running[at].saturating_add(waiting[at])) + STEP_DOUBLING_REQUESTS;
            let prefills_late =
                tokens > most_prefilling * measured_or(rate[at], self.assumed_prefill_tokens_per_s);
            let decodes_late = requests * measured_or(step[at], self.assumed_decode_step_ms) > most_decoding;
            let is_prefill = role[at] == prefill;
            let is_late = (is_prefill & prefills_late) | (!is_prefill & decodes_late);
            worth[at] = !(is_late & (cached[at] < nearly_all) & (group[at] == pair_group));
        }
        Some((0..BLOCK).fold(0, |bits, at| bits | u32::from(worth[at]) << at))
    }

    /// Whether so little is uncached that the worker may do both.
    pub fn is_near(&self, worker: Worker<'_>) -> bool {
        worker.uncached_tokens(self.prompt_tokens) <= self.near_tokens
    }

    /// Of prefilling for another worker.
    pub fn prefill_ms(&self, worker: Worker<'_>) -> f32 {
        self.computing_of(worker) + trouble_ms(worker) - affinity_ms(self.last_prefill, worker)
    }

    /// Of decoding what another worker prefilled: fetching the KV blocks, then generating.
    pub fn decode_ms(&self, worker: Worker<'_>) -> f32 {
        self.handoff_ms(worker) + self.generating_of(worker) + trouble_ms(worker)
            - affinity_ms(self.holder, worker)
    }

    /// Of doing both.
    pub fn alone_ms(&self, worker: Worker<'_>) -> f32 {
        let trouble = 2.0 * trouble_ms(worker);
        self.computing_of(worker) + self.generating_of(worker) + trouble - affinity_ms(self.holder, worker)
    }

    fn computing_of(&self, worker: Worker<'_>) -> f32 {
        let uncached = worker.uncached_tokens(self.prompt_tokens);
        self.computing_ms(worker.prefill_backlog_tokens(), uncached, worker.prefill_tokens_per_s())
    }

    /// KV blocks that are not there mean that some sequence will be preempted, and so many tokens computed again.
    fn generating_of(&self, worker: Worker<'_>) -> f32 {
        let free = if worker.kv_blocks_total() == 0 { u32::MAX } else { worker.kv_blocks_free() };
        let missing = self.needed_blocks.saturating_sub(free) as f32 * self.block_tokens;
        self.generating_ms(worker.running(), worker.waiting(), worker.decode_step_ms())
            + missing * self.token_ms(worker.prefill_tokens_per_s())
    }

    /// What is queued, then this prompt's uncached part.
    fn computing_ms(&self, backlog_tokens: u32, uncached_tokens: u32, tokens_per_s: f32) -> f32 {
        (backlog_tokens as f32 + uncached_tokens as f32) * self.token_ms(tokens_per_s)
    }

    /// The measured step lags behind; the booked requests are counted at once.
    fn generating_ms(&self, running: u32, waiting: u32, step_ms: f32) -> f32 {
        let step_ms = measured_or(step_ms, self.assumed_decode_step_ms);
        let requests = running as f32 + waiting as f32;
        step_ms * (1.0 + requests / STEP_DOUBLING_REQUESTS) * self.output_tokens
    }

    fn handoff_ms(&self, worker: Worker<'_>) -> f32 {
        let is_pushed_to = self.pushes && worker.can(Ability::Push);
        let overhead_ms = if is_pushed_to { worker.push_overhead_ms() } else { worker.pull_overhead_ms() };
        let bytes = worker.uncached_tokens(self.prompt_tokens) as f32 * self.kv_bytes_per_token;
        fetching_ms(worker, overhead_ms, bytes)
    }

    fn token_ms(&self, tokens_per_s: f32) -> f32 {
        1_000.0 / measured_or(tokens_per_s, self.assumed_prefill_tokens_per_s)
    }
}

/// What was measured beyond the bytes' own time, and that time where the link's rate is known.
pub fn fetching_ms(worker: Worker<'_>, overhead_ms: f32, bytes: f32) -> f32 {
    const BYTES_PER_MS_AT_1_MB_PER_S: f32 = 1_000.0;
    let rate = worker.link_mb_per_s() * BYTES_PER_MS_AT_1_MB_PER_S;
    overhead_ms.max(0.0) + if rate > 0.0 { bytes / rate } else { 0.0 }
}

/// A count, up to what a signed number holds: as such it is made a float in one step, not in seven.
fn signed(count: u32) -> f32 {
    count.min(i32::MAX as u32) as i32 as f32
}

/// A whole block of a column.
fn block<T>(column: &[T], from: usize) -> Option<&[T; BLOCK]> {
    column.get(from..)?.first_chunk()
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

/// The figure, or the assumption where there is none.
pub fn measured_or(measured: f32, assumed: f32) -> f32 {
    if measured > 0.0 { measured } else { assumed }
}
