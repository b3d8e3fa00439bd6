//! Prometheus metrics. Names follow Prometheus' conventions: base units, `_total` for counters.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_core::health::State;
use sluice_core::kv_proof::Verdict;

use super::families::{Policies, Requests, Workers};
use crate::fleet::status::WorkerStatus;

/// All metrics. Label values come from configuration, policy names and fixed sets: never from clients.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Requests,
    policies: Policies,
    workers: Workers,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sluice");
        Self {
            requests: Requests::register(&mut registry),
            policies: Policies::register(&mut registry),
            workers: Workers::register(&mut registry),
            registry: Mutex::new(registry),
        }
    }
}

/// Parts of a request's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Facts, policy call, check of its answer.
    Decide,
    /// Prefill leg, dispatch to answer.
    Prefill,
    /// Decode or unified leg, dispatch to its answer's head.
    DecodeHead,
    /// Request's arrival to the first event of its stream: TTFT as clients see it.
    FirstToken,
    /// Request's arrival to the end of its answer.
    Total,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Decide => "decide",
            Self::Prefill => "prefill",
            Self::DecodeHead => "decode_head",
            Self::FirstToken => "first_token",
            Self::Total => "total",
        }
    }
}

impl Metrics {
    /// A request ended.
    pub fn request(&self, pool: &str, endpoint: &str, outcome: &str) {
        self.requests
            .total
            .get_or_create(&[
                ("pool", pool.into()),
                ("endpoint", endpoint.into()),
                ("outcome", outcome.into()),
            ])
            .inc();
    }

    /// A decision was taken: `kind` is policy, use-default, fault, not-loaded, builtin or reject.
    pub fn decision(&self, policy: &str, kind: &str) {
        self.policies.decisions.get_or_create(&[("policy", policy.into()), ("kind", kind.into())]).inc();
    }

    /// A policy call failed.
    pub fn policy_fault(&self, policy: &str, hook: &str, kind: &str) {
        self.policies
            .faults
            .get_or_create(&[("policy", policy.into()), ("hook", hook.into()), ("kind", kind.into())])
            .inc();
    }

    /// A request is served otherwise than decided.
    pub fn fallback(&self, pool: &str, reason: &str) {
        self.requests.fallbacks.get_or_create(&[("pool", pool.into()), ("reason", reason.into())]).inc();
    }

    /// A leg failed.
    pub fn leg_failure(&self, pool: &str, worker: &str, kind: &str) {
        self.workers
            .leg_failures
            .get_or_create(&[("pool", pool.into()), ("worker", worker.into()), ("kind", kind.into())])
            .inc();
    }

    /// Another attempt is made.
    pub fn retry(&self, pool: &str, reason: &str) {
        self.requests.retries.get_or_create(&[("pool", pool.into()), ("reason", reason.into())]).inc();
    }

    /// What became of a prefill leg's handle: dispatched, absent, unusable, expired; stranded, when decode failed
    /// (it was dispatched too); abandoned, when the client left before decode's answer.
    pub fn transfer(&self, pool: &str, what: &str) {
        self.requests.transfers.get_or_create(&[("pool", pool.into()), ("handle", what.into())]).inc();
    }

    /// A transfer mode was asked for that the pool has not.
    pub fn coerced(&self, pool: &str, mode: &str) {
        self.requests.coerced.get_or_create(&[("pool", pool.into()), ("mode", mode.into())]).inc();
    }

    /// A policy set is in force.
    pub fn swapped(&self, generation: u64) {
        self.policies.swaps.inc();
        self.policies.generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
    }

    /// A policy file was refused.
    pub fn refused(&self, policy: &str) {
        self.policies.refusals.get_or_create(&[("policy", policy.into())]).inc();
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> &Gauge {
        &self.requests.in_flight
    }

    /// Conversations remembered, and how many made room for others since the start.
    pub fn sessions(&self, count: usize, evictions: usize) {
        self.requests.sessions.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.requests.session_evictions.set(i64::try_from(evictions).unwrap_or(i64::MAX));
    }

    /// A leg was sent: prefill, or decode, which is also the one leg of a unified request.
    pub fn leg(&self, pool: &str, worker: &str, leg: &str) {
        self.workers
            .legs
            .get_or_create(&[("pool", pool.into()), ("worker", worker.into()), ("leg", leg.into())])
            .inc();
    }

    /// What is known of a worker now.
    pub fn worker(&self, pool: &str, worker: &WorkerStatus) {
        let up = i64::from(worker.state == State::Up);
        let role = worker.role.name().into();
        self.workers
            .up
            .get_or_create(&[("pool", pool.into()), ("worker", worker.name.clone()), ("role", role)])
            .set(up);
        let labels = [("pool", pool.into()), ("worker", worker.name.clone())];
        self.workers.draining.get_or_create(&labels).set(worker.draining.into());
        self.workers.handles.get_or_create(&labels).set(worker.handles.into());
        self.workers.safe_to_stop.get_or_create(&labels).set(worker.safe_to_stop.into());
        self.workers.requests.get_or_create(&labels).set(worker.booked.requests.into());
        self.workers.prefill_backlog.get_or_create(&labels).set(worker.booked.prefill_tokens.into());
        self.workers.kv_blocks_free.get_or_create(&labels).set(worker.kv_blocks_free.into());
        self.workers.prefill_rate.get_or_create(&labels).set(worker.prefill_tokens_per_s.into());
        self.workers.decode_step.get_or_create(&labels).set(f64::from(worker.decode_step_ms) / 1_000.0);
    }

    /// A probe of whether KV moves from one worker to another ended.
    pub fn kv_probe(&self, pool: &str, prefill: &str, decode: &str, verdict: Verdict) {
        let labels = [("pool", pool.into()), ("outcome", verdict.name().into())];
        self.workers.kv_probes.get_or_create(&labels).inc();
        let labels = [("pool", pool.into()), ("prefill", prefill.into()), ("decode", decode.into())];
        self.workers.kv_pair_moves.get_or_create(&labels).set(verdict.figure());
    }

    /// Whether a pool's KV moves.
    pub fn kv_moves(&self, pool: &str, verdict: Verdict) {
        self.workers.kv_pool_moves.get_or_create(&[("pool", pool.into())]).set(verdict.figure());
    }

    /// Time spent in a phase.
    pub fn phase(&self, pool: &str, phase: Phase, spent: Duration) {
        self.requests
            .phase
            .get_or_create(&[("pool", pool.into()), ("phase", phase.name().into())])
            .observe(spent.as_secs_f64());
    }

    /// All of them in the text exposition.
    pub fn encode(&self) -> String {
        let mut out = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &registry);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exposition_names_what_was_counted() {
        let metrics = Metrics::default();
        metrics.request("llama", "/v1/completions", "ok");
        metrics.policy_fault("adaptive", "route", "trap");
        metrics.phase("llama", Phase::FirstToken, Duration::from_millis(20));
        let text = metrics.encode();
        for line in [
            r#"sluice_requests_total{pool="llama",endpoint="/v1/completions",outcome="ok"} 1"#,
            r#"sluice_policy_faults_total{policy="adaptive",hook="route",kind="trap"} 1"#,
            r#"sluice_phase_seconds_count{pool="llama",phase="first_token"} 1"#,
            r#"sluice_phase_seconds_bucket{le="0.025",pool="llama",phase="first_token"} 1"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}
