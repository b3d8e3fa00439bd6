//! The fleet: who serves which model, who is up, how loaded and how fast each worker is.
//!
//! Figures flow one way. Probes, scrapes and answers write into a [`Worker`]; [`Pool::publish`] turns the
//! workers that are up into one immutable [`Table`]; requests read the table and add the bookings of the moment.

pub mod attachment;
pub mod booking;
pub mod draining;
pub mod holds;
pub mod kv_state;
pub mod kv_watch;
pub mod leg;
pub mod pairs;
pub mod probe;
pub mod scrape;
pub mod sequences;
pub mod status;
pub mod streams;
pub mod table;
pub mod worker;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::header::{HeaderMap, HeaderValue};
use sluice_core::breaker::{Breaker, WORKER_FAILURES_TO_OPEN};
use sluice_core::health::{Report, State};
use sluice_core::measure::BytesPerToken;
use sluice_core::retry_budget::RetryBudget;
use tokio::sync::Semaphore;

use crate::clock::{Clock, millis};
use crate::config::{self, Config, Secrets};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::pool_metrics::PoolMetrics;
pub use attachment::Attachment;
pub use booking::Booking;
pub use holds::HandleGuard;
use kv_state::KvState;
pub use leg::Leg;
use pairs::Pairs;
use sequences::Sequences;
pub use table::Table;
use worker::Seen;
pub use worker::Worker;

/// Retries that a pool may make at once: one for each request in flight, as many as there are by default.
const RETRIES_AT_ONCE: usize = 4_096;

/// Prompts of one pool that are tokenised at once. Engines do it beside their other work, on few threads: more would wait
/// for each other until they are late.
pub const TOKENIZED_AT_ONCE: usize = 64;

/// All pools.
pub struct Fleet {
    pools: Vec<Arc<Pool>>,
    by_model: HashMap<String, usize>,
}

/// The workers that serve one model.
pub struct Pool {
    /// As configured.
    pub config: config::Pool,
    /// All of them, up or not.
    pub workers: Vec<Arc<Worker>>,
    /// Resolved once.
    pub metrics: Arc<PoolMetrics>,
    /// `Authorization` for its engines, if they ask for one.
    pub engine_key: Option<HeaderValue>,
    table: ArcSwap<Table>,
    /// Orders publications, so that an older view never replaces a newer one.
    publishing: Mutex<()>,
    /// Who gets on with whom.
    pub pairs: Pairs,
    bytes_per_token: Mutex<BytesPerToken>,
    retry_budget: Mutex<RetryBudget>,
    /// Permits to have a prompt tokenised.
    pub tokenizing: Semaphore,
    /// Decisions begun before a drain order may still send work for this long.
    decisions_end_within: Duration,
    /// Of all workloads.
    decisions: AtomicU64,
    sequences: Sequences,
    /// Written by the pool's KV watch alone.
    kv: ArcSwap<KvState>,
    /// How often an engine of it began anew.
    lives: AtomicU64,
    /// Whether an engine was seen to read a prompt otherwise than it was proven.
    reuse_is_off: AtomicBool,
    clock: Arc<dyn Clock>,
}

impl Fleet {
    /// The fleet as configured; nobody is up before the first probe.
    pub fn new(config: &Config, secrets: &Secrets, clock: &Arc<dyn Clock>, metrics: &Metrics) -> Self {
        let decisions_end_within = draining::decisions_end_within(config.policy.wall_bound_ms);
        let pool = |pool| Pool::new(pool, secrets, clock.clone(), metrics, decisions_end_within);
        let pools: Vec<_> = config.pools.iter().map(|config| Arc::new(pool(config))).collect();
        let by_model =
            pools.iter().enumerate().map(|(index, pool)| (pool.config.model.clone(), index)).collect();
        Self { pools, by_model }
    }

    /// Changes whenever an engine began anew.
    pub fn lives(&self) -> u64 {
        self.pools.iter().map(|pool| pool.lives.load(Ordering::Relaxed)).sum()
    }

    /// The pool that serves a model.
    pub fn pool(&self, model: &str) -> Option<&Arc<Pool>> {
        self.by_model.get(model).map(|index| &self.pools[*index])
    }

    /// All pools, in the order of the configuration.
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.pools
    }
}

impl Pool {
    fn new(
        config: &config::Pool,
        secrets: &Secrets,
        clock: Arc<dyn Clock>,
        metrics: &Metrics,
        decisions_end_within: Duration,
    ) -> Self {
        let workers: Vec<_> =
            config.workers.iter().map(|worker| Arc::new(Worker::new(config, worker, metrics))).collect();
        Self {
            engine_key: secrets.engine_keys.get(&config.name).cloned(),
            config: config.clone(),
            workers,
            metrics: metrics.pool(&config.name),
            table: ArcSwap::from_pointee(Table::default()),
            publishing: Mutex::default(),
            pairs: Pairs::default(),
            bytes_per_token: Mutex::default(),
            retry_budget: Mutex::new(RetryBudget::of(RETRIES_AT_ONCE)),
            tokenizing: Semaphore::new(TOKENIZED_AT_ONCE),
            decisions_end_within,
            decisions: AtomicU64::new(0),
            sequences: Sequences::default(),
            kv: ArcSwap::default(),
            lives: AtomicU64::new(0),
            reuse_is_off: AtomicBool::new(false),
            clock,
        }
    }

    /// The workers that take work now.
    pub fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// Publishes a new table from what is known of the workers.
    pub fn publish(&self) {
        let _order = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        self.table.store(Arc::new(Table::of(&self.workers, self.clock.elapsed())));
    }

    /// Takes a report on a worker; a change of its state is published and returned.
    pub fn report(&self, worker: &Worker, report: Report) -> Option<State> {
        let changed = {
            let mut seen = worker.seen();
            let before = seen.health.state;
            seen.health = seen.health.after(report);
            // A connection that was refused once, of a queue that was full, is no restart.
            seen.was_gone |= report == Report::ProbeFailed && seen.health.state == State::Down;
            if seen.health.state == State::Up
                && (before == State::Unknown || std::mem::take(&mut seen.was_gone))
            {
                self.began_anew(worker, &mut seen);
            }
            (seen.health.state != before).then_some(seen.health.state)
        };
        if changed.is_some() {
            self.publish();
        }
        changed
    }

    /// An engine process started anew: what its breakers saw, and who holds blocks there, was before.
    fn began_anew(&self, worker: &Worker, seen: &mut Seen) {
        seen.incarnation = seen.incarnation.wrapping_add(1);
        worker.forget_stranded();
        self.lives.fetch_add(1, Ordering::Relaxed);
        if !seen.breaker.is_closed() {
            tracing::info!(
                pool = worker.pool,
                worker = worker.name,
                "worker was started anew: its breaker is closed"
            );
        }
        seen.breaker = Breaker::after(WORKER_FAILURES_TO_OPEN);
        self.pairs.forget(worker.id);
    }

    /// KV bytes of a token, over all layers and ranks: as written, else as attached engines declare it, else the default.
    pub fn kv_bytes_per_token(&self, table: &Table) -> u32 {
        let written = self.config.kv_bytes_per_token;
        if self.config.kv_bytes_per_token_is_set {
            written
        } else {
            table.kv_bytes_per_token.unwrap_or(written)
        }
    }

    /// A worker by its name.
    pub fn worker(&self, name: &str) -> Option<&Arc<Worker>> {
        self.workers.iter().find(|worker| worker.name == name)
    }

    /// Whether kept turns are not used any more, see [`Self::turn_reuse_off`].
    pub fn reuse_is_off(&self) -> bool {
        self.reuse_is_off.load(Ordering::Relaxed)
    }

    /// Its engines read prompts otherwise than is proven: no kept turn is used until this host starts anew.
    pub fn turn_reuse_off(&self) {
        self.reuse_is_off.store(true, Ordering::Relaxed);
    }

    /// Whether KV moves between its workers, as far as it was probed.
    pub fn kv(&self) -> Arc<KvState> {
        self.kv.load_full()
    }

    pub(crate) fn set_kv(&self, state: KvState) {
        if **self.kv.load() != state {
            self.kv.store(Arc::new(state));
        }
    }

    /// Time since some fixed moment.
    pub fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// What times this pool's handles.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Takes one retry from the pool's budget, if one is left.
    pub fn may_retry(&self) -> bool {
        let requests = self.decisions.load(Ordering::Relaxed);
        self.retry_budget.lock().unwrap_or_else(PoisonError::into_inner).take(requests, self.now_ms())
    }

    /// Now, by the clock that does not step.
    pub fn now_ms(&self) -> u64 {
        millis(self.clock.elapsed())
    }

    /// The name of one of its workers, for people.
    pub fn worker_name(&self, id: u64) -> &str {
        self.workers.iter().find(|worker| worker.id == id).map_or("?", |worker| &worker.name)
    }

    /// Whether another worker could do what this one did, beside those that are not wanted.
    pub fn has_another(&self, worker: u64, unwanted: &[u64]) -> bool {
        let table = self.table();
        let role = self.workers.iter().find(|other| other.id == worker).map(|other| other.role);
        table
            .workers
            .iter()
            .any(|other| Some(other.role) == role && other.id != worker && !unwanted.contains(&other.id))
    }

    /// Headers of requests that the host itself makes to the pool's engines: their key, if they ask for one.
    pub fn own_headers(&self) -> HeaderMap {
        config::own_headers(self.engine_key.as_ref())
    }

    /// The number of this decision among its workload's here, counted from 0.
    pub fn next_sequence(&self, workload: &str) -> u64 {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        self.sequences.next(workload)
    }

    /// Tokens that a prompt text of `bytes` most likely has.
    pub fn estimate_tokens(&self, bytes: usize) -> u32 {
        self.bytes_per_token.lock().unwrap_or_else(PoisonError::into_inner).tokens(bytes)
    }

    /// An engine counted a prompt.
    pub fn observe_prompt(&self, bytes: usize, tokens: u32) {
        self.bytes_per_token.lock().unwrap_or_else(PoisonError::into_inner).observe(bytes, tokens);
    }
}
