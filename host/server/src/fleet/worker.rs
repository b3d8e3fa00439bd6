//! One engine as the host knows it: what it was configured as, what is booked on it, what was seen of it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_core::breaker::{Breaker, WORKER_FAILURES_TO_OPEN};
use sluice_core::facts::{Role, ability};
use sluice_core::health::{Health, State};
use sluice_core::load::{Scraped, Share};
use sluice_core::measure::SmoothedRatio;

use super::attachment::Attachment;
use super::holds::Holds;
use crate::config::{self, PoolMode, WorkerUrl};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::worker_metrics::WorkerMetrics;

/// An engine.
#[derive(Debug)]
pub struct Worker {
    /// Stable across restarts.
    pub id: u64,
    /// Unique in its pool.
    pub name: String,
    /// Name of its pool.
    pub pool: String,
    /// What it is for.
    pub role: Role,
    /// Where it answers.
    pub url: WorkerUrl,
    /// See [`ability`].
    pub abilities: u16,
    /// Where it runs.
    pub zone: u16,
    /// The name by which its engine attaches, where this host moves KV.
    pub engine: Option<String>,
    /// Resolved once.
    pub metrics: WorkerMetrics,
    booked: Booked,
    pub(super) holds: Mutex<Holds>,
    /// Tokens of a block, as configured.
    pub block_tokens: u32,
    held_tokens: AtomicU64,
    seen: Mutex<Seen>,
}

/// What this host has on the worker now. Only [`super::booking::Booking`] changes it.
#[derive(Debug, Default)]
struct Booked {
    requests: AtomicU32,
    prefill_tokens: AtomicU32,
    context_tokens: AtomicU32,
    output_tokens: AtomicU32,
    kv_blocks: AtomicU32,
}

/// What is booked on a worker, read at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct BookedNow {
    /// Requests.
    pub requests: u32,
    /// Admitted, not yet prefilled.
    pub prefill_tokens: u32,
    /// Context of the sequences decoding.
    pub context_tokens: u32,
    /// Generated so far by them.
    pub output_tokens: u32,
    /// KV blocks they fill.
    pub kv_blocks: u32,
}

/// What probes, scrapes and answers told of the worker.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Whether it is up.
    pub health: Health,
    /// Of its last scrape.
    pub scraped: Scraped,
    /// `GET /version`.
    pub version: Option<String>,
    /// Engine totals of its last scrape.
    pub totals: super::scrape::Totals,
    /// When its engine's process started, as that says, in seconds since the epoch.
    pub started_s: Option<f64>,
    /// Why the last probe or scrape failed.
    pub last_error: Option<String>,
    /// Block size the engine says it has.
    pub engine_block_tokens: Option<u32>,
    /// Whether the engine caches prefixes, or does not say that it does not.
    pub caches_prefixes: bool,
    /// Whether the engine says that it serves the pool's model; it gets no work while it says no.
    pub serves_model: bool,
    /// Models that the engine says it serves.
    pub models: Option<Vec<String>>,
    /// When it was told to drain; `None` while it takes work. It outlasts the engine's own restarts.
    pub draining_since: Option<Duration>,
    /// How often it came up, counters that began anew included: each time it may be another engine.
    pub incarnation: u32,
    /// Whether it was out of a probe's reach since it was last up.
    pub was_gone: bool,
    /// When the last prefill here was done: one that waited for it began then.
    pub last_prefill_done: Duration,
    /// Uncached prompt tokens over milliseconds.
    pub prefill_rate: Dated,
    /// Milliseconds over generated tokens.
    pub decode_step: Dated,
    /// Transferred bytes over microseconds, that is MB over seconds.
    pub link_mb_per_s: SmoothedRatio,
    /// See [`sluice_core::measure::transfer_overhead_ms`].
    pub pull_overhead_ms: SmoothedRatio,
    /// Failures over legs.
    pub failures: SmoothedRatio,
    /// How its engine stands to this host's KV link.
    pub attachment: Attachment,
    /// Whether its engine, in this life, has answered without the KV that was held for it.
    pub ignores_transfers: bool,
    /// As `pull_overhead_ms`, for push.
    pub push_overhead_ms: SmoothedRatio,
    /// Whether it is spared for a while.
    pub breaker: Breaker,
    /// The failure that its breaker opened with, for as long as that is open.
    pub spared_for: Option<String>,
}

/// Prefill work over which its rate is smoothed, in milliseconds of it.
const PREFILL_WINDOW_MS: f64 = 2_000.0;
/// Tokens over which the decode step is smoothed.
const DECODE_WINDOW_TOKENS: f64 = 500.0;
/// Transfers over which the link's rate is smoothed, in microseconds of them.
const LINK_WINDOW_US: f64 = 500_000.0;
/// Legs over which overheads are smoothed.
const OVERHEAD_WINDOW_LEGS: f64 = 10.0;
/// Legs over which failures are smoothed.
const FAILURE_WINDOW_LEGS: f64 = 20.0;

/// How long a measured rate is believed of a worker that got no work since.
const RATE_FRESH_FOR: Duration = Duration::from_secs(10);

/// A smoothed figure, and when it was last observed.
#[derive(Debug, Clone, Copy)]
pub struct Dated {
    ratio: SmoothedRatio,
    observed: Duration,
}

impl Dated {
    const fn over(window: f64) -> Self {
        Self { ratio: SmoothedRatio::over(window), observed: Duration::ZERO }
    }

    /// Adds an observation made at `now`.
    pub fn observe(&mut self, numerator: f64, denominator: f64, now: Duration) {
        self.ratio.observe(numerator, denominator);
        self.observed = self.observed.max(now);
    }

    /// The figure, or 0 if nothing was observed lately.
    pub fn fresh(&self, now: Duration) -> f32 {
        if now.saturating_sub(self.observed) < RATE_FRESH_FOR { self.ratio.value() } else { 0.0 }
    }

    /// The figure, however old.
    pub fn last(&self) -> f32 {
        self.ratio.value()
    }
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            health: Health::default(),
            scraped: Scraped::default(),
            version: None,
            totals: super::scrape::Totals::default(),
            started_s: None,
            last_error: None,
            engine_block_tokens: None,
            caches_prefixes: true,
            serves_model: true,
            models: None,
            draining_since: None,
            incarnation: 0,
            was_gone: false,
            last_prefill_done: Duration::ZERO,
            prefill_rate: Dated::over(PREFILL_WINDOW_MS),
            decode_step: Dated::over(DECODE_WINDOW_TOKENS),
            link_mb_per_s: SmoothedRatio::over(LINK_WINDOW_US),
            pull_overhead_ms: SmoothedRatio::over(OVERHEAD_WINDOW_LEGS),
            push_overhead_ms: SmoothedRatio::over(OVERHEAD_WINDOW_LEGS),
            ignores_transfers: false,
            attachment: Attachment::default(),
            failures: SmoothedRatio::over(FAILURE_WINDOW_LEGS),
            breaker: Breaker::after(WORKER_FAILURES_TO_OPEN),
            spared_for: None,
        }
    }
}

/// Prefills of fewer uncached tokens are not measured: a step's fixed cost outweighs them.
const TOKENS_TO_MEASURE_A_PREFILL: u32 = 128;

impl Seen {
    /// A prefill of `uncached_tokens`, dispatched and done at these times. An engine prefills one prompt after the
    /// other, so the work began when it was dispatched or when the one before was done, whichever is later.
    pub fn prefilled(&mut self, uncached_tokens: u32, dispatched: Duration, done: Duration) {
        let began = dispatched.max(self.last_prefill_done);
        self.last_prefill_done = self.last_prefill_done.max(done);
        if uncached_tokens >= TOKENS_TO_MEASURE_A_PREFILL {
            let took_ms = done.saturating_sub(began).as_secs_f64() * 1_000.0;
            self.prefill_rate.observe(f64::from(uncached_tokens), took_ms, done);
        }
    }
}

impl Worker {
    /// A worker as configured, of which nothing is known yet.
    pub fn new(pool: &config::Pool, worker: &config::Worker, metrics: &Metrics) -> Self {
        let mut abilities = match pool.mode {
            PoolMode::Bidirectional if worker.role == Role::Decode => {
                // An engine's own time for a hold is fixed; within it the host lets it go when nobody wants it.
                ability::PULL | ability::GIVES_BACK | ability::HOLDS_RELEASABLE
            }
            PoolMode::Pull | PoolMode::Bidirectional => ability::PULL,
            PoolMode::HostManaged if worker.role == Role::Decode => {
                const HOLDS: u16 = ability::GIVES_BACK | ability::HOLDS_RENEWABLE | ability::HOLDS_RELEASABLE;
                ability::PULL | ability::PUSH | HOLDS
            }
            PoolMode::HostManaged => ability::PULL | ability::PUSH | ability::HOLDS_RELEASABLE,
            PoolMode::Unified => 0,
        };
        if worker.can_prefill {
            abilities |= ability::CAN_PREFILL;
        }
        Self {
            id: worker.id,
            name: worker.name.clone(),
            pool: pool.name.clone(),
            role: worker.role,
            url: worker.url.clone(),
            abilities,
            zone: worker.zone,
            engine: worker.engine.clone(),
            metrics: metrics.worker(&pool.name, &worker.name, worker.role, worker.engine.is_some()),
            booked: Booked::default(),
            holds: Mutex::default(),
            block_tokens: pool.block_tokens,
            held_tokens: AtomicU64::new(0),
            seen: Mutex::default(),
        }
    }

    /// Whether it is up and not draining. Breakers are not asked.
    pub fn takes_work(&self) -> bool {
        let seen = self.seen();
        seen.health.state == State::Up && seen.draining_since.is_none()
    }

    /// Whether it can serve a whole request.
    pub fn serves_alone(&self) -> bool {
        match self.role {
            Role::Unified => true,
            Role::Decode => self.abilities & ability::CAN_PREFILL != 0,
            Role::Prefill => false,
        }
    }

    /// What is booked now.
    pub fn booked(&self) -> BookedNow {
        let read = |figure: &AtomicU32| figure.load(Ordering::Relaxed);
        BookedNow {
            requests: read(&self.booked.requests),
            prefill_tokens: read(&self.booked.prefill_tokens),
            context_tokens: read(&self.booked.context_tokens),
            output_tokens: read(&self.booked.output_tokens),
            kv_blocks: read(&self.booked.kv_blocks),
        }
    }

    /// Tokens of kept turns that it holds.
    pub fn held_tokens(&self) -> u64 {
        self.held_tokens.load(Ordering::Relaxed)
    }

    /// More are held.
    pub fn hold_tokens(&self, tokens: u32) {
        self.held_tokens.fetch_add(tokens.into(), Ordering::Relaxed);
    }

    /// Fewer are held: as many as were added before.
    pub fn unhold_tokens(&self, tokens: u64) {
        self.held_tokens.fetch_sub(tokens, Ordering::Relaxed);
    }

    /// What was seen. Held for copies and small updates only, never across a wait.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        // A panic while the lock was held leaves figures that are merely older.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn book(&self, share: Share) {
        let add = |figure: &AtomicU32, by: u32| figure.fetch_add(by, Ordering::Relaxed);
        add(&self.booked.requests, share.requests);
        add(&self.booked.prefill_tokens, share.prefill_tokens);
        add(&self.booked.context_tokens, share.context_tokens);
        add(&self.booked.kv_blocks, share.kv_blocks);
    }

    pub(super) fn unbook(&self, share: Share) {
        let take = |figure: &AtomicU32, by: u32| figure.fetch_sub(by, Ordering::Relaxed);
        take(&self.booked.requests, share.requests);
        take(&self.booked.prefill_tokens, share.prefill_tokens);
        take(&self.booked.context_tokens, share.context_tokens);
        take(&self.booked.kv_blocks, share.kv_blocks);
    }

    pub(super) fn add_output(&self, tokens: u32) {
        self.booked.output_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    pub(super) fn take_output(&self, tokens: u32) {
        self.booked.output_tokens.fetch_sub(tokens, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_figure_is_no_longer_believed() {
        let mut step = Dated::over(DECODE_WINDOW_TOKENS);
        let observed = Duration::from_secs(100);
        step.observe(300.0, 10.0, observed);
        let just_before = observed + RATE_FRESH_FOR - Duration::from_millis(1);
        assert_eq!(
            (step.fresh(just_before), step.fresh(observed + RATE_FRESH_FOR), step.last()),
            (30.0, 0.0, 30.0)
        );
    }

    #[test]
    fn queued_prefills_are_timed_from_the_one_before() {
        let ms = Duration::from_millis;
        let mut seen = Seen::default();
        // Three prompts of 1,000 tokens arrive together; each takes 100 ms.
        for n in 1..=3 {
            seen.prefilled(1_000, ms(0), ms(n * 100));
        }
        assert!((seen.prefill_rate.fresh(ms(1_000)) - 10.0).abs() < 0.01);
        // One that waited for nobody is timed from its dispatch; tiny ones say nothing.
        seen.prefilled(1_000, ms(900), ms(1_000));
        seen.prefilled(16, ms(1_000), ms(1_020));
        assert!((seen.prefill_rate.fresh(ms(1_000)) - 10.0).abs() < 0.01);
    }
}
