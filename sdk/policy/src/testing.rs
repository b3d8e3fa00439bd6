//! For native unit tests of policies, without a host.
//!
//! - [`FactsBuilder`] and [`WorkerSpec`]: facts worker by worker; [`RandomFacts`]: facts of all kinds.
//! - [`try_policy`]: what the host demands of every policy, on drawn facts. Each policy should have this test.
//! - [`assert_routes`]: a table of cases; [`assert_even`]: ties that are broken evenly.
//! - [`check_verdict`] and its like: the host's checks of one answer.
//!
//! ```
//! use sluice_policy_sdk::testing::{FactsBuilder, WorkerSpec, decode, prefill};
//!
//! let facts = FactsBuilder::new()
//!     .prompt_tokens(4_000)
//!     .worker(prefill(1))
//!     .worker(WorkerSpec { running: 12, ..decode(2) })
//!     .build();
//! assert_eq!(facts.decodes().count(), 1);
//! ```

mod check;
mod even;
mod random;
mod trial;

pub use check::{check_decode, check_renewal, check_retention, check_verdict};
pub use even::assert_even;
pub use random::RandomFacts;
pub use trial::{assert_routes, try_policy};

use crate::{Ability, ExtraColumn, Facts, Request, Role, Session, Workers};

/// One worker of a test's table, with the figures of an idle, healthy one to start from.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the columns are documented at the accessors of `Worker`")]
pub struct WorkerSpec {
    pub id: u64,
    pub role: Role,
    pub abilities: u16,
    pub group: u16,
    pub zone: u16,
    pub running: u32,
    pub waiting: u32,
    pub prefill_backlog_tokens: u32,
    pub decode_context_tokens: u32,
    pub decode_output_tokens: u32,
    pub kv_blocks_total: u32,
    pub kv_blocks_free: u32,
    pub kv_blocks_held: u32,
    pub cached_tokens: u32,
    pub prefill_tokens_per_s: f32,
    pub decode_step_ms: f32,
    pub link_mb_per_s: f32,
    pub pull_overhead_ms: f32,
    pub push_overhead_ms: f32,
    pub failure_rate: f32,
}

/// An idle unified worker.
pub fn unified(id: u64) -> WorkerSpec {
    WorkerSpec::idle(id, Role::Unified, 0)
}

/// An idle prefill worker that pulls.
pub fn prefill(id: u64) -> WorkerSpec {
    WorkerSpec::idle(id, Role::Prefill, Ability::Pull.bit())
}

/// An idle decode worker that pulls and cannot prefill.
pub fn decode(id: u64) -> WorkerSpec {
    WorkerSpec::idle(id, Role::Decode, Ability::Pull.bit())
}

impl WorkerSpec {
    fn idle(id: u64, role: Role, abilities: u16) -> Self {
        Self {
            id,
            role,
            abilities,
            group: 0,
            zone: 0,
            running: 0,
            waiting: 0,
            prefill_backlog_tokens: 0,
            decode_context_tokens: 0,
            decode_output_tokens: 0,
            kv_blocks_total: 10_000,
            kv_blocks_free: 10_000,
            kv_blocks_held: 0,
            cached_tokens: 0,
            prefill_tokens_per_s: 10_000.0,
            decode_step_ms: 10.0,
            link_mb_per_s: 10_000.0,
            pull_overhead_ms: 2.0,
            push_overhead_ms: 1.0,
            failure_rate: 0.0,
        }
    }

    /// The same worker with one more ability.
    #[must_use]
    pub fn able(mut self, ability: Ability) -> Self {
        self.abilities |= ability.bit();
        self
    }
}

/// Builds [`Facts`]: a request of 1,000 prompt tokens and at most 100 output tokens, without a session, in an
/// empty fleet, until told otherwise.
#[derive(Debug, Clone)]
pub struct FactsBuilder {
    facts: Facts,
}

impl Default for FactsBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl FactsBuilder {
    /// Starts with the plain request.
    pub fn new() -> Self {
        let request = Request {
            model: "test-model".to_owned(),
            tenant: "test-tenant".to_owned(),
            workload: "test-workload".to_owned(),
            prompt_tokens: 1_000,
            prompt_tokens_exact: true,
            max_output_tokens: 100,
            streams: false,
            priority: 0,
            ttft_target_ms: None,
            tpot_target_ms: None,
            attempt: 0,
            labels: Vec::new(),
        };
        Self {
            facts: Facts {
                now_ms: 1_700_000_000_000,
                seed: 1,
                sequence: 0,
                block_tokens: 16,
                kv_bytes_per_token: 131_072,
                request,
                session: None,
                workers: no_workers(),
                extra: Vec::new(),
            },
        }
    }

    /// Adds a worker; its row is the number of workers added before.
    #[must_use]
    pub fn worker(mut self, worker: WorkerSpec) -> Self {
        append(&mut self.facts.workers, &worker);
        self
    }

    /// Sets the hash of the conversation.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.facts.seed = seed;
        self
    }

    /// Sets the number of decisions made before.
    #[must_use]
    pub fn sequence(mut self, sequence: u64) -> Self {
        self.facts.sequence = sequence;
        self
    }

    /// Sets the length of the prompt.
    #[must_use]
    pub fn prompt_tokens(mut self, tokens: u32) -> Self {
        self.facts.request.prompt_tokens = tokens;
        self
    }

    /// Sets the client's output limit.
    #[must_use]
    pub fn max_output_tokens(mut self, tokens: u32) -> Self {
        self.facts.request.max_output_tokens = tokens;
        self
    }

    /// Changes anything of the request.
    #[must_use]
    pub fn request(mut self, change: impl FnOnce(&mut Request)) -> Self {
        change(&mut self.facts.request);
        self
    }

    /// Changes the session, which starts as a second turn that holds nothing.
    #[must_use]
    pub fn session(mut self, change: impl FnOnce(&mut Session)) -> Self {
        change(self.facts.session.get_or_insert(Session {
            turn: 1,
            holder: None,
            last_prefill: None,
            held_tokens: 0,
            held_expires_in_ms: 0,
            last_gap_ms: 0,
            mean_gap_ms: 0.0,
            gap_spread_ms: 0.0,
        }));
        self
    }

    /// Adds a column by its key; one value per worker.
    #[must_use]
    pub fn extra(mut self, key: u16, values: Vec<f32>) -> Self {
        self.facts.extra.push(ExtraColumn { key, values });
        self
    }

    /// The facts.
    pub fn build(self) -> Facts {
        self.facts
    }
}

macro_rules! columns {
    ($($column:ident),* $(,)?) => {
        fn no_workers() -> Workers {
            Workers { role: Vec::new(), $($column: Vec::new()),* }
        }

        fn append(table: &mut Workers, worker: &WorkerSpec) {
            table.role.push(worker.role.number());
            $(table.$column.push(worker.$column);)*
        }
    };
}

columns! {
    id, abilities, group, zone, running, waiting, prefill_backlog_tokens, decode_context_tokens,
    decode_output_tokens, kv_blocks_total, kv_blocks_free, kv_blocks_held, cached_tokens, prefill_tokens_per_s,
    decode_step_ms, link_mb_per_s, pull_overhead_ms, push_overhead_ms, failure_rate,
}
