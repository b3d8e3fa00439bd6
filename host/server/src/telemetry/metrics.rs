//! Prometheus metrics. Names follow Prometheus' conventions: base units, `_total` for counters.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_core::facts::Role;
use sluice_core::kv_proof::Verdict;

use super::families::{Policies, Requests, Spans, Tasks, Tls, Workers};
use super::labels::{KvWay, Label};
use super::pool_metrics::{NONE, OTHERS, POLICIES_LABELLED, PoolMetrics};
use super::span_metrics::SpanMetrics;
use super::worker_metrics::WorkerMetrics;

/// All metrics. What requests count on their way is resolved once: see [`PoolMetrics`] and [`WorkerMetrics`].
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Requests,
    policies: Policies,
    workers: Workers,
    tls: Tls,
    tasks: Tasks,
    no_pool: Arc<PoolMetrics>,
    spans: SpanMetrics,
    /// Names of policies that have series of their own. Names are files' and bindings', which come and go.
    labelled: Mutex<BTreeSet<String>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sluice");
        let requests = Requests::register(&mut registry);
        let policies = Policies::register(&mut registry);
        Self {
            no_pool: Arc::new(PoolMetrics::resolve(NONE, &requests, &policies)),
            requests,
            policies,
            workers: Workers::register(&mut registry),
            tls: Tls::register(&mut registry),
            tasks: Tasks::register(&mut registry),
            spans: SpanMetrics::resolve(&Spans::register(&mut registry)),
            labelled: Mutex::default(),
            registry: Mutex::new(registry),
        }
    }
}

impl Metrics {
    /// The metrics of a pool, by its configured name.
    pub fn pool(&self, pool: &str) -> Arc<PoolMetrics> {
        Arc::new(PoolMetrics::resolve(pool, &self.requests, &self.policies))
    }

    /// Those of requests for which no pool was found.
    pub fn no_pool(&self) -> &Arc<PoolMetrics> {
        &self.no_pool
    }

    /// The metrics of a worker, by the configured names.
    /// `attaches`: its engine is to attach to this host.
    pub fn worker(&self, pool: &str, worker: &str, role: Role, attaches: bool) -> WorkerMetrics {
        WorkerMetrics::resolve(pool, worker, role, attaches, &self.workers)
    }

    /// Spans sent and lost.
    pub fn spans(&self) -> &SpanMetrics {
        &self.spans
    }

    /// The policy's name, or that of all beyond the first [`POLICIES_LABELLED`].
    fn label(&self, policy: &str) -> String {
        let mut labelled = self.labelled.lock().unwrap_or_else(PoisonError::into_inner);
        let has_own = labelled.contains(policy)
            || (labelled.len() < POLICIES_LABELLED && labelled.insert(policy.to_owned()));
        if has_own { policy } else { OTHERS }.to_owned()
    }

    /// A policy call failed.
    pub fn policy_fault(&self, policy: &str, hook: &str, kind: &str) {
        self.policies
            .faults
            .get_or_create(&[("policy", self.label(policy)), ("hook", hook.into()), ("kind", kind.into())])
            .inc();
    }

    /// Lets the series of the deciding policy stand at 0, so that an alert on their rates sees the first fault.
    pub fn expect_policy(&self, policy: &str) {
        let policy = self.label(policy);
        for kind in sluice_policy::FAULT_KINDS {
            let hook = sluice_policy::Hook::Route.name();
            let labels = [("policy", policy.clone()), ("hook", hook.into()), ("kind", kind.into())];
            drop(self.policies.faults.get_or_create(&labels));
        }
        drop(self.policies.refusals.get_or_create(&[("policy", policy.clone())]));
        drop(self.policies.put_aside.get_or_create(&[("policy", policy)]));
    }

    /// A policy set is in force.
    pub fn swapped(&self, generation: u64) {
        self.policies.swaps.inc();
        self.policies.generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
    }

    /// The cache of compiled policies was asked, or could not be.
    pub fn policy_cache(&self, used: &sluice_policy::CacheUse) {
        self.policies.cache.get_or_create(&[("result", used.name().into())]).inc();
    }

    /// A policy was compiled in this process, not in one of its own.
    pub fn compiled_inside(&self) {
        self.policies.compiled_inside.inc();
    }

    /// A policy file was refused.
    pub fn refused(&self, policy: &str) {
        self.policies.refusals.get_or_create(&[("policy", self.label(policy))]).inc();
    }

    /// A policy failed too often.
    pub fn put_aside(&self, policy: &str) {
        self.policies.put_aside.get_or_create(&[("policy", self.label(policy))]).inc();
    }

    /// New certificate files were found: taken or refused.
    pub fn tls_renewal(&self, outcome: &str) {
        self.tls.renewals.get_or_create(&[("outcome", outcome.into())]).inc();
    }

    /// A background task failed.
    pub fn task_panic(&self, task: &str) {
        self.tasks.panics.get_or_create(&[("task", task.into())]).inc();
    }

    /// TLS handshakes of clients that failed.
    pub fn tls_handshake_failures(&self) -> &Counter {
        &self.tls.handshake_failures
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> &Gauge {
        &self.requests.in_flight
    }

    /// A probe of whether KV moves between two workers ended.
    pub fn kv_probe(&self, pool: &str, prefill: &str, decode: &str, way: KvWay, verdict: Verdict) {
        let direction = ("direction", way.name().into());
        let labels = [("pool", pool.into()), direction.clone(), ("outcome", verdict.name().into())];
        self.workers.kv_probes.get_or_create(&labels).inc();
        let labels =
            [("pool", pool.into()), direction, ("prefill", prefill.into()), ("decode", decode.into())];
        self.workers.kv_pair_moves.get_or_create(&labels).set(verdict.figure());
    }

    /// Whether a pool's KV moves.
    pub fn kv_moves(&self, pool: &str, way: KvWay, verdict: Verdict) {
        let labels = [("pool", pool.into()), ("direction", way.name().into())];
        self.workers.kv_pool_moves.get_or_create(&labels).set(verdict.figure());
    }

    /// Registers metrics that are kept elsewhere.
    pub fn register<M>(&self, metrics: impl FnOnce(&mut Registry) -> M) -> M {
        metrics(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
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
    use std::time::Duration;

    use super::*;
    use crate::request::Endpoint;
    use sluice_core::failure::Failure;

    use crate::telemetry::labels::{Outcome, Phase, Source};

    #[test]
    fn policies_beyond_the_bound_share_one_series() {
        let metrics = Metrics::default();
        for number in 0..POLICIES_LABELLED + 5 {
            metrics.refused(&format!("adaptive-{number}"));
        }
        metrics.refused("adaptive-0");
        let text = metrics.encode();
        let series = || text.lines().filter(|line| line.starts_with("sluice_policy_refusals_total{"));
        assert_eq!(series().count(), POLICIES_LABELLED + 1);
        assert!(series().any(|line| line == r#"sluice_policy_refusals_total{policy="others"} 5"#), "{text}");
        assert!(
            series().any(|line| line == r#"sluice_policy_refusals_total{policy="adaptive-0"} 2"#),
            "{text}"
        );
    }

    #[test]
    fn the_exposition_names_what_was_counted() {
        let metrics = Metrics::default();
        let pool = metrics.pool("llama");
        pool.request(Endpoint::Completions, Outcome::Ok);
        let policy = pool.policy("adaptive");
        policy.decision(Source::UseDefault);
        policy.phase(Phase::FirstToken, Duration::from_millis(20));
        metrics.pool("other").policy("adaptive").decision(Source::UseDefault);
        pool.undecided().phase(Phase::Total, Duration::from_millis(1));
        metrics.worker("llama", "p0", Role::Prefill, false).leg_failure(Failure::Unreachable);
        metrics.policy_fault("adaptive", "route", "trap");
        let text = metrics.encode();
        for line in [
            r#"sluice_requests_total{pool="llama",endpoint="/v1/completions",outcome="ok"} 1"#,
            r#"sluice_requests_total{pool="llama",endpoint="/v1/chat/completions",outcome="ok"} 0"#,
            r#"sluice_policy_faults_total{policy="adaptive",hook="route",kind="trap"} 1"#,
            r#"sluice_decisions_total{policy="adaptive",kind="use-default"} 2"#,
            r#"sluice_leg_failures_total{pool="llama",worker="p0",kind="connect"} 1"#,
            r#"sluice_phase_seconds_count{pool="llama",policy="adaptive",phase="first_token"} 1"#,
            r#"sluice_phase_seconds_count{pool="llama",policy="none",phase="total"} 1"#,
            r#"sluice_phase_seconds_bucket{le="0.025",pool="llama",policy="adaptive",phase="first_token"} 1"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}
