//! A leg on its way, and the one place where its outcome is told: to the worker's figures, to the breakers, to metrics.

use std::sync::Arc;

use sluice_core::failure::Failure;
use sluice_core::health::Report;

use super::pairs::Pair;
use super::{Pool, Worker};
use crate::telemetry::labels;

/// A leg. Dropped without an outcome it was cancelled, which is never the worker's failure.
pub struct Leg {
    pool: Arc<Pool>,
    worker: Arc<Worker>,
    /// Who fetches from whom, when KV moves.
    pair: Option<Pair>,
    is_trial: bool,
    is_pairs_trial: bool,
    told: bool,
}

impl Leg {
    /// A prefill leg is sent.
    pub fn prefill(pool: &Arc<Pool>, worker: &Arc<Worker>) -> Self {
        worker.metrics.leg(labels::Leg::Prefill);
        Self::start(pool, worker, None)
    }

    /// A decode leg is sent, or the one leg of a unified request; `from`: whose KV blocks it fetches.
    pub fn decode(pool: &Arc<Pool>, worker: &Arc<Worker>, from: Option<&Worker>) -> Self {
        worker.metrics.leg(labels::Leg::Decode);
        Self::start(pool, worker, from.map(|prefill| (prefill.id, worker.id)))
    }

    /// A request to another path is passed on.
    pub fn passed(pool: &Arc<Pool>, worker: &Arc<Worker>) -> Self {
        worker.metrics.leg(labels::Leg::Passthrough);
        Self::start(pool, worker, None)
    }

    fn start(pool: &Arc<Pool>, worker: &Arc<Worker>, pair: Option<Pair>) -> Self {
        let now_ms = pool.now_ms();
        let is_trial = worker.seen().breaker.sent(now_ms);
        if is_trial {
            // Others stay away until it is known how this one went.
            pool.publish();
        }
        let is_pairs_trial = pair.is_some_and(|pair| pool.pairs.sent(pair, now_ms));
        Self { pool: pool.clone(), worker: worker.clone(), pair, is_trial, is_pairs_trial, told: false }
    }

    /// Whose leg it is.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// The first byte of a stream came: the worker works, whatever becomes of the rest.
    pub fn first_byte(&mut self) {
        self.close_breakers();
    }

    /// The answer is whole.
    pub fn went_well(&mut self) {
        self.told = true;
        self.worker.seen().failures.observe(0.0, 1.0);
        self.close_breakers();
    }

    /// It came to nothing, or broke off.
    pub fn failed(&mut self, failure: Failure, why: &str) {
        self.told = true;
        if failure != Failure::Refused {
            self.worker.metrics.leg_failure(failure);
        }
        if failure == Failure::Unreachable {
            // Real work met it: no need to wait for a probe.
            self.worker.seen().last_error = Some(why.to_owned());
            if self.pool.report(&self.worker, Report::ConnectFailed).is_some() {
                tracing::warn!(pool = self.worker.pool, worker = self.worker.name, "worker is down: {why}");
            }
        }
        if failure == Failure::Unreachable || failure.counts_against_worker() {
            self.worker.seen().failures.observe(1.0, 1.0);
        }
        if failure == Failure::Refused {
            self.worker.seen().failures.observe(0.0, 1.0);
            self.close_breakers();
        }
        if failure.counts_against_worker() {
            self.count_towards_breakers(why);
        } else {
            self.leave_trials();
        }
    }

    fn close_breakers(&self) {
        let changed = {
            let mut seen = self.worker.seen();
            let before = seen.breaker;
            seen.breaker.went_well();
            before.is_closed() != seen.breaker.is_closed()
        };
        if changed {
            let (pool, worker) = (&self.worker.pool, &self.worker.name);
            tracing::info!(pool, worker, "worker answers again: its breaker is closed");
            self.pool.publish();
        }
        if let Some(pair) = self.pair {
            self.pool.pairs.went_well(pair);
        }
    }

    fn count_towards_breakers(&self, why: &str) {
        let now_ms = self.pool.now_ms();
        let (pool, worker) = (&self.worker.pool, &self.worker.name);
        if self.worker.seen().breaker.failed(now_ms) {
            self.worker.metrics.breaker_opened();
            tracing::warn!(pool, worker, "worker fails again and again, it gets no work for a while: {why}");
            self.pool.publish();
        }
        let Some(pair) = self.pair else { return };
        if self.pool.pairs.failed(pair, now_ms) {
            self.pool.metrics.pair_opened();
            let prefill = self.pool.worker_name(pair.0);
            tracing::warn!(
                pool,
                prefill,
                decode = worker,
                "transfers of this pair fail, it is avoided: {why}"
            );
        }
    }

    fn leave_trials(&self) {
        let now_ms = self.pool.now_ms();
        if self.is_trial {
            self.worker.seen().breaker.trial_left(now_ms);
            self.pool.publish();
        }
        if let Some(pair) = self.pair.filter(|_| self.is_pairs_trial) {
            self.pool.pairs.trial_left(pair, now_ms);
        }
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        if !self.told {
            self.leave_trials();
        }
    }
}
