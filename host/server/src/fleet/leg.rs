//! A leg on its way, and the one place where its outcome is told: to the worker's figures, to the breakers, to metrics.

use std::sync::Arc;

use sluice_core::breaker::Breaker;
use sluice_core::failure::Failure;
use sluice_core::health::Report;

use super::pairs::Pair;
use super::{Pool, Worker};
use crate::http::segments::Taken;
use crate::telemetry::labels;
use crate::text_table::one_line;

/// The longest failure kept for people, in characters: engines' messages may be long.
const WHY_CHARS_AT_MOST: usize = 200;

/// A leg. Dropped without an outcome it was cancelled, which is never the worker's failure.
pub struct Leg {
    pool: Arc<Pool>,
    worker: Arc<Worker>,
    /// Who fetches from whom, when KV moves.
    pair: Option<Pair>,
    /// Of a prefill leg that is to fetch a kept turn: set once it has left.
    fetches_turn: Option<Taken>,
    is_trial: bool,
    is_pairs_trial: bool,
    told: bool,
}

impl Leg {
    /// A prefill leg is sent. `fetches_turn`: whose KV it is to fetch from decode, if it is; that has left with it once this is
    /// set.
    pub fn prefill(pool: &Arc<Pool>, worker: &Arc<Worker>, fetches_turn: Option<Taken>) -> Self {
        worker.metrics.leg(labels::Leg::Prefill);
        let mut leg = Self::start(pool, worker, None);
        leg.fetches_turn = fetches_turn;
        leg
    }

    /// The one leg of a unified request is sent.
    pub fn unified(pool: &Arc<Pool>, worker: &Arc<Worker>) -> Self {
        worker.metrics.leg(labels::Leg::Decode);
        Self::start(pool, worker, None)
    }

    /// A decode leg is to be sent, that most likely fetches KV blocks `from` a prefill worker. It counts as a breaker's
    /// trial from now on: others stay away while the prompt is prefilled.
    pub fn decode(pool: &Arc<Pool>, worker: &Arc<Worker>, from: &Worker) -> Self {
        Self::start(pool, worker, Some((from.id, worker.id)))
    }

    /// The decode leg is sent now.
    pub fn sent(&mut self, fetches_kv: bool) {
        self.worker.metrics.leg(labels::Leg::Decode);
        if !fetches_kv && let Some(pair) = self.pair.take() {
            self.leave_pairs_trial(pair);
        }
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
        Self {
            pool: pool.clone(),
            worker: worker.clone(),
            pair,
            is_trial,
            is_pairs_trial,
            fetches_turn: None,
            told: false,
        }
    }

    /// Whose leg it is.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// The first byte of a stream came: the worker works, whatever becomes of the rest.
    pub fn first_byte(&mut self) {
        self.tell_worker(Breaker::began_well);
        self.tell_pair();
    }

    /// The answer is whole.
    pub fn went_well(&mut self) {
        self.told = true;
        self.worker.seen().failures.observe(0.0, 1.0);
        self.tell_worker(Breaker::went_well);
        self.tell_pair();
    }

    /// It came to nothing, or broke off.
    pub fn failed(&mut self, failure: Failure, why: &str) {
        self.told = true;
        let fetches_turn = self.fetches_turn.as_ref().is_some_and(Taken::is_set);
        let failure =
            if fetches_turn && failure.may_be_the_holders() { Failure::TurnUnread } else { failure };
        if !failure.is_refusal() {
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
        if failure.is_refusal() {
            // The worker works; whether KV moves was not tried.
            self.worker.seen().failures.observe(0.0, 1.0);
            self.tell_worker(Breaker::went_well);
        }
        if failure.counts_against_worker() {
            self.count_towards_breakers(failure, why);
        } else {
            self.leave_trials();
        }
    }

    fn tell_worker(&self, tell: impl FnOnce(&mut Breaker)) {
        let changed = {
            let mut seen = self.worker.seen();
            let before = seen.breaker;
            tell(&mut seen.breaker);
            let closed = !before.is_closed() && seen.breaker.is_closed();
            if closed {
                seen.spared_for = None;
            }
            closed
        };
        if changed {
            let (pool, worker) = (&self.worker.pool, &self.worker.name);
            tracing::info!(pool, worker, "worker answers again: its breaker is closed");
            self.pool.publish();
        }
    }

    fn tell_pair(&self) {
        if let Some(pair) = self.pair {
            self.pool.pairs.went_well(pair);
        }
    }

    /// An engine's words may quote a prompt: the log tells the kind alone, operators are shown them on request.
    fn count_towards_breakers(&self, failure: Failure, why: &str) {
        let now_ms = self.pool.now_ms();
        let (pool, worker) = (&self.worker.pool, &self.worker.name);
        // Who waits in vain for KV blocks may be well: a few bad prefill workers must not have a good decode worker spared.
        let is_pairs_alone = failure == Failure::Late && self.pair.is_some();
        if is_pairs_alone {
            self.leave_workers_trial();
        } else if self.opens_breaker(now_ms, why) {
            self.worker.metrics.breaker_opened();
            tracing::warn!(
                pool,
                worker,
                "worker fails again and again, it gets no work for a while: {}",
                failure.name()
            );
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
                "transfers of this pair fail, it is avoided: {}",
                failure.name()
            );
        }
    }

    /// Whether the worker's breaker opened by this failure.
    fn opens_breaker(&self, now_ms: u64, why: &str) -> bool {
        let mut seen = self.worker.seen();
        let opened = seen.breaker.failed(now_ms);
        if opened {
            seen.spared_for = Some(one_line(why).chars().take(WHY_CHARS_AT_MOST).collect());
        }
        opened
    }

    fn leave_trials(&self) {
        self.leave_workers_trial();
        if let Some(pair) = self.pair {
            self.leave_pairs_trial(pair);
        }
    }

    fn leave_workers_trial(&self) {
        if self.is_trial {
            self.worker.seen().breaker.trial_left(self.pool.now_ms());
            self.pool.publish();
        }
    }

    fn leave_pairs_trial(&self, pair: Pair) {
        if self.is_pairs_trial {
            self.pool.pairs.trial_left(pair, self.pool.now_ms());
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
