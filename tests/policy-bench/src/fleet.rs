//! The fleets that are asked about: split ones, busy, every worker a little differently.

use sluice_policy_sdk::pick::mix;
use sluice_policy_sdk::testing::{FactsBuilder, WorkerSpec, decode, prefill};
use sluice_policy_sdk::{Ability, Facts};

/// A request of 4,000 tokens in front of so many workers, half of which prefill.
pub fn facts(rows: u64, labels: usize) -> Facts {
    let facts = FactsBuilder::new().seed(mix(rows, 1)).prompt_tokens(4_000).max_output_tokens(400);
    let facts = facts.request(|request| {
        request.labels = (0..labels).map(|n| (format!("x-label-{n}"), format!("value-{n}"))).collect();
    });
    (0..rows).map(worker).fold(facts, FactsBuilder::worker).build()
}

fn worker(row: u64) -> WorkerSpec {
    let id = mix(row, 2);
    let drawn = |salt: u64, end: u32| (mix(id, salt) % u64::from(end)) as u32;
    let idle = if row.is_multiple_of(2) { prefill(id) } else { decode(id).able(Ability::CanPrefill) };
    WorkerSpec {
        running: drawn(1, 40),
        waiting: drawn(2, 3),
        prefill_backlog_tokens: drawn(3, 30_000),
        decode_context_tokens: drawn(4, 300_000),
        decode_output_tokens: drawn(5, 20_000),
        kv_blocks_free: drawn(6, 10_000),
        cached_tokens: drawn(7, 1_000),
        prefill_tokens_per_s: 8_000.0 + drawn(8, 4_000) as f32,
        decode_step_ms: 15.0 + drawn(9, 10) as f32,
        failure_rate: drawn(10, 100) as f32 / 10_000.0,
        ..idle
    }
}
