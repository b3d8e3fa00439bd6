//! One worker's metrics: handles resolved once.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use sluice_core::facts::Role;
use sluice_core::failure::Failure;
use sluice_core::health::State;

use super::counted::Counted;
use super::families::{Figure, Workers};
use super::labels::Leg;
use crate::fleet::status::WorkerStatus;

/// One worker's.
#[derive(Debug)]
pub struct WorkerMetrics {
    legs: Counted<Leg>,
    failures: Counted<Failure>,
    breaker_opened: Counter,
    up: Gauge,
    draining: Gauge,
    handles: Gauge,
    kept_tokens: Gauge,
    /// Of workers whose KV this host moves.
    attached: Option<Gauge>,
    safe_to_stop: Gauge,
    breaker_open: Gauge,
    requests: Gauge,
    prefill_backlog: Gauge,
    kv_blocks_free: Gauge,
    prefill_rate: Figure,
    decode_step: Figure,
}

impl WorkerMetrics {
    pub(super) fn resolve(pool: &str, worker: &str, role: Role, attaches: bool, families: &Workers) -> Self {
        let labels = [("pool", pool.to_owned()), ("worker", worker.to_owned())];
        let with = |key: &'static str, value: String| {
            [("pool", pool.to_owned()), ("worker", worker.to_owned()), (key, value)]
        };
        Self {
            legs: Counted::resolve(&families.legs, |leg| with("leg", leg)),
            failures: Counted::resolve(&families.leg_failures, |kind| with("kind", kind)),
            breaker_opened: families.breaker_opened.get_or_create_owned(&labels),
            breaker_open: families.breaker_open.get_or_create_owned(&labels),
            up: families.up.get_or_create_owned(&with("role", role.name().to_owned())),
            draining: families.draining.get_or_create_owned(&labels),
            handles: families.handles.get_or_create_owned(&labels),
            kept_tokens: families.kept_tokens.get_or_create_owned(&labels),
            attached: attaches.then(|| families.attached.get_or_create_owned(&labels)),
            safe_to_stop: families.safe_to_stop.get_or_create_owned(&labels),
            requests: families.requests.get_or_create_owned(&labels),
            prefill_backlog: families.prefill_backlog.get_or_create_owned(&labels),
            kv_blocks_free: families.kv_blocks_free.get_or_create_owned(&labels),
            prefill_rate: families.prefill_rate.get_or_create_owned(&labels),
            decode_step: families.decode_step.get_or_create_owned(&labels),
        }
    }

    /// A leg was sent: prefill, or decode, which is also the one leg of a unified request.
    pub fn leg(&self, leg: Leg) {
        self.legs.inc(leg);
    }

    /// A leg failed.
    pub fn leg_failure(&self, failure: Failure) {
        self.failures.inc(failure);
    }

    /// Its breaker opened.
    pub fn breaker_opened(&self) {
        self.breaker_opened.inc();
    }

    /// What is known of the worker now.
    pub fn seen(&self, worker: &WorkerStatus) {
        self.up.set(i64::from(worker.state == State::Up));
        self.draining.set(worker.draining.into());
        self.handles.set(worker.handles.into());
        if let (Some(gauge), Some(attached)) = (&self.attached, worker.attached) {
            gauge.set(i64::from(attached));
        }
        self.kept_tokens.set(i64::try_from(worker.kept_tokens).unwrap_or(i64::MAX));
        self.safe_to_stop.set(worker.safe_to_stop.into());
        self.breaker_open.set(i64::from(worker.breaker_open));
        self.requests.set(worker.booked.requests.into());
        self.prefill_backlog.set(worker.booked.prefill_tokens.into());
        self.kv_blocks_free.set(worker.kv_blocks_free.into());
        self.prefill_rate.set(worker.prefill_tokens_per_s.into());
        self.decode_step.set(f64::from(worker.decode_step_ms) / 1_000.0);
    }
}
