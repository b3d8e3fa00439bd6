//! Builders for tests of this crate and of the crates above it.

use std::sync::Arc;

use crate::facts::{Facts, FleetColumns, LoadColumns, Role, ability};

/// One worker of a test table: role and abilities.
pub type TestWorker = (Role, u16);

/// A prefill worker of a pull pool.
pub fn prefill() -> TestWorker {
    (Role::Prefill, ability::PULL)
}

/// A decode worker of a pull pool that cannot prefill.
pub fn decode() -> TestWorker {
    (Role::Decode, ability::PULL)
}

/// A worker that serves alone.
pub fn unified() -> TestWorker {
    (Role::Unified, 0)
}

/// Facts with these workers, idle and unmeasured, and a request of 1,000 prompt tokens.
pub fn table(workers: &[TestWorker]) -> Facts {
    let count = workers.len();
    let mut facts = Facts {
        now_ms: 1_800_000_000_000,
        block_tokens: 16,
        kv_bytes_per_token: 1_024,
        fleet: Arc::new(FleetColumns {
            id: (0..count as u64).map(|row| row + 100).collect(),
            role: workers.iter().map(|(role, _)| *role as u8).collect(),
            abilities: workers.iter().map(|(_, bits)| *bits).collect(),
            group: vec![0; count],
            zone: vec![0; count],
            kv_blocks_total: vec![1_000; count],
            prefill_tokens_per_s: vec![0.0; count],
            decode_step_ms: vec![0.0; count],
            link_mb_per_s: vec![0.0; count],
            pull_overhead_ms: vec![0.0; count],
            push_overhead_ms: vec![0.0; count],
            failure_rate: vec![0.0; count],
        }),
        load: LoadColumns {
            running: vec![0; count],
            waiting: vec![0; count],
            prefill_backlog_tokens: vec![0; count],
            decode_context_tokens: vec![0; count],
            decode_output_tokens: vec![0; count],
            kv_blocks_free: vec![1_000; count],
            kv_blocks_held: vec![0; count],
        },
        cached_tokens: vec![0; count],
        ..Facts::default()
    };
    facts.request.model = "test".to_owned();
    facts.request.prompt_tokens = 1_000;
    facts.request.max_output_tokens = 100;
    facts
}
