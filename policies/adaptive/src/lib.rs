//! The workers that are expected to take the least time.
//!
//! # When to use it
//! As the default for real traffic. It weighs queues, measured rates, what each worker has cached and how
//! much KV memory is free; it sends a request to one worker when little of the prompt has to be computed, and
//! to a prefill and a decode worker otherwise. It needs truthful figures: where the fleet reports none, it
//! falls back to assumed rates and behaves like a least-loaded policy.

mod cost;

use sluice_policy_sdk::{
    Facts, Policy, Prefilled, Retention, Row, TurnEnd, Verdict, Worker, export, pick, settings,
};

settings! {
    /// What the cost model assumes, and where its lines are.
    pub struct Settings {
        /// Prefill rate assumed for a worker whose rate was not measured yet, in tokens per second.
        assumed_prefill_tokens_per_s: u32 = 8_000, 1..=10_000_000;
        /// Decode step assumed for a worker whose step was not measured yet, in milliseconds.
        assumed_decode_step_ms: u32 = 20, 1..=10_000;
        /// A worker that can prefill and decode serves a request alone when at most this many tokens are
        /// uncached there: computing them takes less time than handing KV blocks over, and disturbs the
        /// decoding of others for less than a step. The same line as vLLM draws between computing and fetching.
        unified_below_tokens: u32 = 64, 0..=1_000_000;
        /// Always choose the decode worker after the prefill.
        late_binding: bool = false;
        /// Choose the decode worker after the prefill when the best one has at least this many requests
        /// waiting: queues will look different by then.
        late_at_waiting: u32 = 4, 1..=1_000_000;
        /// How long the decode worker keeps KV blocks after a turn, in milliseconds.
        retain_ttl_ms: u32 = 480_000, 0..=86_400_000;
    }
}

/// Least expected time.
#[derive(Debug)]
pub struct Adaptive {
    settings: Settings,
}

impl Adaptive {
    fn prefill_ms(&self, facts: &Facts, worker: Worker<'_>) -> f32 {
        let rate = self.prefill_rate(worker);
        let uncached = worker.uncached_tokens(facts.request.prompt_tokens);
        cost::prefill_ms(worker.prefill_backlog_tokens(), uncached, rate)
            + cost::trouble_ms(worker.failure_rate())
    }

    fn decode_ms(&self, facts: &Facts, worker: Worker<'_>) -> f32 {
        let request = &facts.request;
        let step = cost::measured_or(worker.decode_step_ms(), self.settings.assumed_decode_step_ms);
        let requests = worker.running().saturating_add(worker.waiting());
        let needed = facts.blocks_for(request.prompt_tokens.saturating_add(request.max_output_tokens));
        let free = if worker.kv_blocks_total() == 0 { u32::MAX } else { worker.kv_blocks_free() };
        cost::decode_ms(step, requests, request.max_output_tokens)
            + cost::shortage_ms(needed, free, facts.block_tokens, self.prefill_rate(worker))
            + cost::trouble_ms(worker.failure_rate())
    }

    fn prefill_rate(&self, worker: Worker<'_>) -> f32 {
        cost::measured_or(worker.prefill_tokens_per_s(), self.settings.assumed_prefill_tokens_per_s)
    }

    fn handoff_ms(&self, facts: &Facts, decode: Worker<'_>) -> f32 {
        let tokens = decode.uncached_tokens(facts.request.prompt_tokens);
        cost::handoff_ms(decode.pull_overhead_ms(), tokens, facts.kv_bytes_per_token, decode.link_mb_per_s())
    }

    fn after_prefill_ms(&self, facts: &Facts, decode: Worker<'_>) -> f32 {
        self.handoff_ms(facts, decode) + self.decode_ms(facts, decode)
    }

    fn alone_ms(&self, facts: &Facts, worker: Worker<'_>) -> f32 {
        self.prefill_ms(facts, worker) + self.decode_ms(facts, worker)
    }

    fn best_pair<'a>(&self, facts: &'a Facts) -> Option<(Worker<'a>, Worker<'a>)> {
        let last = facts.session.as_ref().and_then(|session| session.last_prefill);
        let prefill = pick::least(facts.seed, facts.paired_prefills(), |worker| {
            self.prefill_ms(facts, worker) + cost::affinity_ms(last == Some(worker.row()))
        })?;
        Some((prefill, self.best_decode(facts, prefill)?))
    }

    fn best_decode<'a>(&self, facts: &'a Facts, prefill: Worker<'a>) -> Option<Worker<'a>> {
        let holder = facts.session.as_ref().and_then(|session| session.holder);
        pick::least(facts.seed, facts.decodes_for(prefill), |worker| {
            self.after_prefill_ms(facts, worker) + cost::affinity_ms(holder == Some(worker.row()))
        })
    }

    /// The best worker to serve the request alone, among those where no more than so many tokens are uncached.
    fn best_alone<'a>(&self, facts: &'a Facts, most_uncached_tokens: u32) -> Option<Worker<'a>> {
        let prompt = facts.request.prompt_tokens;
        let holder = facts.session.as_ref().and_then(|session| session.holder);
        let able = facts.alone().filter(|worker| worker.uncached_tokens(prompt) <= most_uncached_tokens);
        pick::least(facts.seed, able, |worker| {
            self.alone_ms(facts, worker) + cost::affinity_ms(holder == Some(worker.row()))
        })
    }
}

impl Policy for Adaptive {
    fn settings_schema() -> String {
        Settings::schema()
    }

    fn configure(settings: &str) -> Result<Self, String> {
        Settings::parse(settings).map(|settings| Self { settings })
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let Some((prefill, decode)) = self.best_pair(facts) else {
            return match self.best_alone(facts, u32::MAX) {
                Some(worker) => Verdict::unified(worker.row()).because("no pair to split it over"),
                // Nobody can serve. The host knows why, and words that for the client; a policy would guess.
                None => Verdict::UseDefault,
            };
        };
        if let Some(worker) = self.best_alone(facts, self.settings.unified_below_tokens) {
            // The worker of a popular prefix must not get every request that begins with it.
            let split_ms = self.prefill_ms(facts, prefill) + self.after_prefill_ms(facts, decode);
            if self.alone_ms(facts, worker) <= split_ms {
                return Verdict::unified(worker.row()).because("little is uncached there");
            }
        }
        if self.settings.late_binding {
            Verdict::pull_late(prefill.row()).because("decode worker chosen after the prefill")
        } else if decode.waiting() >= self.settings.late_at_waiting {
            Verdict::pull_late(prefill.row()).because("decode queues are deep")
        } else {
            Verdict::pull(prefill.row(), decode.row()).because("least expected time")
        }
    }

    fn bind_decode(&self, facts: &Facts, prefilled: &Prefilled) -> Option<Row> {
        self.best_decode(facts, facts.worker(prefilled.prefill)?).map(Worker::row)
    }

    fn retain(&self, _turn: &TurnEnd) -> Retention {
        match self.settings.retain_ttl_ms {
            0 => Retention::Release,
            ttl_ms => Retention::keep_ms(ttl_ms),
        }
    }
}

export!(Adaptive);

#[cfg(test)]
mod tests;
