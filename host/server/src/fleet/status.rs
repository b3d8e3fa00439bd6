//! The fleet as people and balancers ask for it: `/admin/fleet` and `/ready`.

use std::sync::Arc;

use serde::Serialize;
use sluice_core::facts::{Role, Row};
use sluice_core::health::State;

use super::kv_state::KvState;
use super::scrape::Totals;
use super::worker::BookedNow;
use super::{Attachment, Fleet, Pool, Worker};

/// One pool.
#[derive(Debug, Serialize)]
pub struct PoolStatus {
    /// As configured.
    pub name: String,
    /// Served model name.
    pub model: String,
    /// `unified`, `pull` or `host-managed`.
    pub mode: &'static str,
    /// Whether a request could be served now.
    pub serves: bool,
    /// Why not, or what is amiss.
    pub note: Option<String>,
    /// Why kept turns are of no use, where requests are served as well without.
    pub turns_note: Option<String>,
    /// Whether KV moves between its workers; `None` of a pool that moves none.
    pub kv: Option<Arc<KvState>>,
    /// Prefill/decode pairs that are avoided since transfers between them failed.
    pub pairs_open: usize,
    /// Its workers.
    pub workers: Vec<WorkerStatus>,
}

/// One worker.
#[derive(Debug, Serialize)]
pub struct WorkerStatus {
    /// As configured.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Where it answers.
    pub url: String,
    /// Whether it takes work.
    pub state: State,
    /// Whether it was told to take no new work.
    pub draining: bool,
    /// Whether it drains and stopping it costs no request: nothing runs on it, and nobody has KV blocks to read there.
    pub safe_to_stop: bool,
    /// Live handles to KV blocks on it.
    pub handles: u32,
    /// Tokens of turns whose KV it keeps for the next one of their conversations.
    pub kept_tokens: u64,
    /// Whether its engine is attached to this host, so that its KV is moved; `None` where this host moves none.
    pub attached: Option<bool>,
    /// Why no KV is moved of an engine that is attached.
    pub misfit: Option<Arc<str>>,
    /// `GET /version`.
    pub version: Option<String>,
    /// This host's load on it.
    pub booked: BookedNow,
    /// Requests that its last scrape said were running.
    pub engine_running: u32,
    /// Requests that its last scrape said were waiting.
    pub engine_waiting: u32,
    /// Of its last scrape.
    pub kv_blocks_total: u32,
    /// Of its last scrape.
    pub kv_blocks_free: u32,
    /// Measured, smoothed; 0 while unmeasured.
    pub prefill_tokens_per_s: f32,
    /// Measured, smoothed; 0 while unmeasured.
    pub decode_step_ms: f32,
    /// Measured, smoothed; 0 while unmeasured.
    pub link_mb_per_s: f32,
    /// Measured, smoothed; 0 while unmeasured.
    pub pull_overhead_ms: f32,
    /// Smoothed share of legs that failed.
    pub failure_rate: f32,
    /// Whether its breaker is open: it failed again and again, and is tried with one leg at a time.
    pub breaker_open: bool,
    /// The failure that it opened with.
    pub spared_for: Option<String>,
    /// Engine totals.
    pub totals: Totals,
    /// Why the last probe or scrape failed.
    pub last_error: Option<String>,
}

/// All pools.
pub fn fleet(fleet: &Fleet) -> Vec<PoolStatus> {
    fleet.pools().iter().map(|pool| pool_status(pool)).collect()
}

/// The workers of a pool.
pub fn workers(pool: &Pool) -> Vec<WorkerStatus> {
    pool.workers.iter().map(|worker| worker_status(pool, worker)).collect()
}

fn pool_status(pool: &Pool) -> PoolStatus {
    let workers = workers(pool);
    let fleet = &pool.table().fleet;
    let serves = fleet.can_serve(&rows_of_model(pool));
    // A pull pool may serve by a worker that serves alone, and still want its pair.
    let kv = pool.config.mode.engines_move_kv().then(|| pool.kv());
    let note = pool
        .missing()
        .or_else(|| mismatch(pool))
        .or_else(|| unattached(pool, &workers))
        .or_else(|| in_trouble(pool, &workers))
        .or_else(|| kv.as_ref()?.note());
    PoolStatus {
        name: pool.config.name.clone(),
        model: pool.config.model.clone(),
        mode: pool.config.mode.name(),
        serves,
        note,
        turns_note: kv.as_ref().and_then(|kv| kv.back_note()),
        kv,
        pairs_open: pool.pairs.open(),
        workers,
    }
}

/// Rows of the workers that are not known to serve another model than the pool's.
fn rows_of_model(pool: &Pool) -> Vec<Row> {
    let table = pool.table();
    let serves_ours = |worker: &Worker| {
        let seen = worker.seen();
        seen.models.as_ref().is_none_or(|models| models.contains(&pool.config.model))
    };
    let rows = table.fleet.rows().zip(&table.workers);
    rows.filter(|(_, worker)| serves_ours(worker)).map(|(row, _)| row).collect()
}

/// Where an engine says something else than the configuration.
fn mismatch(pool: &Pool) -> Option<String> {
    let (model, block_tokens) = (&pool.config.model, pool.config.block_tokens);
    pool.workers.iter().find_map(|worker| {
        let seen = worker.seen();
        if let Some(models) = seen.models.as_ref().filter(|models| !models.contains(model)) {
            return Some(format!("model = {model:?}, but worker {:?} serves {models:?}", worker.name));
        }
        let engine = seen.engine_block_tokens.filter(|engine| *engine != block_tokens)?;
        Some(format!("block_tokens = {block_tokens}, but worker {:?} has {engine}", worker.name))
    })
}

/// Engines whose KV this host should move, and cannot.
fn unattached(pool: &Pool, workers: &[WorkerStatus]) -> Option<String> {
    if let Some(worker) = workers.iter().find(|worker| worker.misfit.is_some()) {
        return Some(format!("no KV is moved of worker {:?}: {}", worker.name, worker.misfit.as_deref()?));
    }
    if let Some((one, other, apart)) = pool.layouts_apart() {
        return Some(format!("engines {one:?} and {other:?} cannot exchange KV: {apart}"));
    }
    let is_missing = |worker: &&WorkerStatus| worker.state == State::Up && worker.attached == Some(false);
    let missing: Vec<_> = workers.iter().filter(is_missing).map(|worker| worker.name.as_str()).collect();
    let first = missing.first()?;
    Some(format!(
        "{} of its engines are not attached to this host, {first:?} first: no KV is moved from or to them",
        missing.len()
    ))
}

/// Workers and pairs that are spared.
fn in_trouble(pool: &Pool, workers: &[WorkerStatus]) -> Option<String> {
    if let Some(worker) = workers.iter().find(|worker| worker.breaker_open) {
        let why = worker.spared_for.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        return Some(format!("worker {:?} fails again and again and is spared{why}", worker.name));
    }
    let pairs = pool.pairs.open();
    (pairs > 0).then(|| format!("transfers between {pairs} pairs of workers fail, they are avoided"))
}

fn worker_status(pool: &Pool, worker: &Worker) -> WorkerStatus {
    let draining = pool.draining(worker);
    let seen = worker.seen().clone();
    WorkerStatus {
        name: worker.name.clone(),
        role: worker.role,
        url: worker.url.to_string(),
        state: seen.health.state,
        draining: draining.asked,
        safe_to_stop: draining.safe_to_stop,
        handles: draining.handles,
        kept_tokens: worker.held_tokens(),
        attached: worker.needs_attachment().then(|| seen.attachment.engine().is_some()),
        misfit: match &seen.attachment {
            Attachment::Unfit(why) => Some(why.clone()),
            Attachment::Missing | Attachment::Attached(_) => None,
        },
        version: seen.version,
        booked: worker.booked(),
        engine_running: seen.scraped.running,
        engine_waiting: seen.scraped.waiting,
        kv_blocks_total: seen.scraped.kv_blocks_total,
        kv_blocks_free: seen.scraped.kv_blocks_free,
        prefill_tokens_per_s: seen.prefill_rate.last() * 1_000.0,
        decode_step_ms: seen.decode_step.last(),
        link_mb_per_s: seen.link_mb_per_s.value(),
        pull_overhead_ms: seen.pull_overhead_ms.value(),
        failure_rate: seen.failures.value(),
        breaker_open: !seen.breaker.is_closed(),
        spared_for: seen.spared_for.filter(|_| !seen.breaker.is_closed()),
        totals: seen.totals,
        last_error: seen.last_error,
    }
}
