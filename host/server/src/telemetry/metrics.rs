//! Prometheus metrics. Names follow Prometheus' conventions: base units, `_total` for counters.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use sluice_core::health::State;

use crate::fleet::status::WorkerStatus;

/// From 5 us to a minute: covers a policy call as well as a long answer.
const SECONDS: [f64; 20] = [
    0.000_005, 0.000_01, 0.000_05, 0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

type Labels<const N: usize> = [(&'static str, String); N];

/// All metrics. Label values come from configuration, policy names and fixed sets: never from clients.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<Labels<3>, Counter>,
    decisions: Family<Labels<2>, Counter>,
    policy_faults: Family<Labels<3>, Counter>,
    fallbacks: Family<Labels<2>, Counter>,
    leg_failures: Family<Labels<3>, Counter>,
    retries: Family<Labels<2>, Counter>,
    transfers: Family<Labels<2>, Counter>,
    coerced: Family<Labels<2>, Counter>,
    policy_swaps: Counter,
    policy_refusals: Family<Labels<1>, Counter>,
    generation: Gauge,
    in_flight: Gauge,
    sessions: Gauge,
    session_evictions: Gauge,
    legs: Family<Labels<3>, Counter>,
    worker_up: Family<Labels<3>, Gauge>,
    worker_requests: Family<Labels<2>, Gauge>,
    worker_prefill_backlog: Family<Labels<2>, Gauge>,
    worker_kv_blocks_free: Family<Labels<2>, Gauge>,
    worker_prefill_rate: Family<Labels<2>, Gauge<f64, AtomicU64>>,
    worker_decode_step: Family<Labels<2>, Gauge<f64, AtomicU64>>,
    phase: Family<Labels<2>, Histogram, fn() -> Histogram>,
}

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sluice");
        macro_rules! register {
            ($name:literal, $help:literal, $metric:expr) => {{
                let metric = $metric;
                registry.register($name, $help, metric.clone());
                metric
            }};
        }
        Self {
            requests: register!("requests", "Requests by pool, endpoint and outcome", Family::default()),
            decisions: register!("decisions", "Routing decisions by policy and kind", Family::default()),
            policy_faults: register!(
                "policy_faults",
                "Calls of a policy that failed, by policy, hook and kind",
                Family::default()
            ),
            fallbacks: register!(
                "fallbacks",
                "Requests served otherwise than decided, by pool and reason",
                Family::default()
            ),
            leg_failures: register!(
                "leg_failures",
                "Legs that failed, by pool, worker and kind",
                Family::default()
            ),
            retries: register!("retries", "Attempts after the first, by pool and reason", Family::default()),
            transfers: register!(
                "transfers",
                "Prefill legs by pool and what became of their KV handle",
                Family::default()
            ),
            coerced: register!(
                "transfer_mode_coerced",
                "Decisions for a transfer mode that the pool has not, by pool and mode",
                Family::default()
            ),
            policy_swaps: register!("policy_swaps", "Policy sets put in force", Counter::default()),
            policy_refusals: register!(
                "policy_refusals",
                "Policy files refused, by policy",
                Family::default()
            ),
            generation: register!("policy_generation", "Number of the policy set in force", Gauge::default()),
            in_flight: register!("in_flight_requests", "Requests being served", Gauge::default()),
            sessions: register!("sessions", "Conversations remembered", Gauge::default()),
            session_evictions: register!(
                "sessions_evicted",
                "Conversations that made room for others since the start",
                Gauge::default()
            ),
            legs: register!("legs", "Legs sent, by pool, worker and leg", Family::default()),
            worker_up: register!("worker_up", "1 while a worker takes work", Family::default()),
            worker_requests: register!(
                "worker_requests",
                "Requests of this host on a worker",
                Family::default()
            ),
            worker_prefill_backlog: register!(
                "worker_prefill_backlog_tokens",
                "Prompt tokens of this host's requests that a worker has still to prefill",
                Family::default()
            ),
            worker_kv_blocks_free: register!(
                "worker_kv_blocks_free",
                "KV blocks free at the last scrape",
                Family::default()
            ),
            worker_prefill_rate: register!(
                "worker_prefill_tokens_per_second",
                "Measured prefill rate, 0 while unmeasured",
                Family::default()
            ),
            worker_decode_step: register!(
                "worker_decode_step_seconds",
                "Measured time per generated token, 0 while unmeasured",
                Family::default()
            ),
            phase: {
                let phase = Family::new_with_constructor(histogram as fn() -> Histogram);
                registry.register_with_unit(
                    "phase",
                    "Time spent, by pool and phase",
                    Unit::Seconds,
                    phase.clone(),
                );
                phase
            },
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
            .get_or_create(&[
                ("pool", pool.into()),
                ("endpoint", endpoint.into()),
                ("outcome", outcome.into()),
            ])
            .inc();
    }

    /// A decision was taken: `kind` is policy, use-default, fault, not-loaded, builtin or reject.
    pub fn decision(&self, policy: &str, kind: &str) {
        self.decisions.get_or_create(&[("policy", policy.into()), ("kind", kind.into())]).inc();
    }

    /// A policy call failed.
    pub fn policy_fault(&self, policy: &str, hook: &str, kind: &str) {
        self.policy_faults
            .get_or_create(&[("policy", policy.into()), ("hook", hook.into()), ("kind", kind.into())])
            .inc();
    }

    /// A request is served otherwise than decided.
    pub fn fallback(&self, pool: &str, reason: &str) {
        self.fallbacks.get_or_create(&[("pool", pool.into()), ("reason", reason.into())]).inc();
    }

    /// A leg failed.
    pub fn leg_failure(&self, pool: &str, worker: &str, kind: &str) {
        self.leg_failures
            .get_or_create(&[("pool", pool.into()), ("worker", worker.into()), ("kind", kind.into())])
            .inc();
    }

    /// Another attempt is made.
    pub fn retry(&self, pool: &str, reason: &str) {
        self.retries.get_or_create(&[("pool", pool.into()), ("reason", reason.into())]).inc();
    }

    /// What became of a prefill leg's handle: dispatched, absent, unusable, expired; stranded, when decode failed
    /// (it was dispatched too); abandoned, when the client left before decode's answer.
    pub fn transfer(&self, pool: &str, what: &str) {
        self.transfers.get_or_create(&[("pool", pool.into()), ("handle", what.into())]).inc();
    }

    /// A transfer mode was asked for that the pool has not.
    pub fn coerced(&self, pool: &str, mode: &str) {
        self.coerced.get_or_create(&[("pool", pool.into()), ("mode", mode.into())]).inc();
    }

    /// A policy set is in force.
    pub fn swapped(&self, generation: u64) {
        self.policy_swaps.inc();
        self.generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
    }

    /// A policy file was refused.
    pub fn refused(&self, policy: &str) {
        self.policy_refusals.get_or_create(&[("policy", policy.into())]).inc();
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> &Gauge {
        &self.in_flight
    }

    /// Conversations remembered, and how many made room for others since the start.
    pub fn sessions(&self, count: usize, evictions: usize) {
        self.sessions.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.session_evictions.set(i64::try_from(evictions).unwrap_or(i64::MAX));
    }

    /// A leg was sent: prefill, or decode, which is also the one leg of a unified request.
    pub fn leg(&self, pool: &str, worker: &str, leg: &str) {
        self.legs
            .get_or_create(&[("pool", pool.into()), ("worker", worker.into()), ("leg", leg.into())])
            .inc();
    }

    /// What is known of a worker now.
    pub fn worker(&self, pool: &str, worker: &WorkerStatus) {
        let up = i64::from(worker.state == State::Up);
        let role = worker.role.name().into();
        self.worker_up
            .get_or_create(&[("pool", pool.into()), ("worker", worker.name.clone()), ("role", role)])
            .set(up);
        let labels = [("pool", pool.into()), ("worker", worker.name.clone())];
        self.worker_requests.get_or_create(&labels).set(worker.booked.requests.into());
        self.worker_prefill_backlog.get_or_create(&labels).set(worker.booked.prefill_tokens.into());
        self.worker_kv_blocks_free.get_or_create(&labels).set(worker.kv_blocks_free.into());
        self.worker_prefill_rate.get_or_create(&labels).set(worker.prefill_tokens_per_s.into());
        self.worker_decode_step.get_or_create(&labels).set(f64::from(worker.decode_step_ms) / 1_000.0);
    }

    /// Time spent in a phase.
    pub fn phase(&self, pool: &str, phase: Phase, spent: Duration) {
        self.phase
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

const _: fn() = || {
    fn is_label_set<T: EncodeLabelSet>() {}
    is_label_set::<Labels<1>>();
};

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
