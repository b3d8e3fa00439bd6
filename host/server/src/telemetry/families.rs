//! The metrics themselves: names, help texts, label names. Handles of a pool, a worker or a policy are in
//! [`super::pool_metrics`] and [`super::worker_metrics`].

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::labels::{Label, Phase};

/// From 5 us to 10 minutes: covers a policy call as well as the longest answer, and is finest where TPOT and TTFT lie.
const SECONDS: [f64; 24] = [
    0.000_005, 0.000_02, 0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.16,
    0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0,
];

pub(super) type Labels<const N: usize> = [(&'static str, String); N];
pub(super) type Counters<const N: usize> = Family<Labels<N>, Counter>;
pub(super) type Gauges<const N: usize> = Family<Labels<N>, Gauge>;
pub(super) type Figures<const N: usize> = Family<Labels<N>, Figure>;
pub(super) type Phases = Family<Labels<3>, Histogram, fn() -> Histogram>;
pub(super) type Figure = Gauge<f64, AtomicU64>;

/// What became of requests.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    pub total: Counters<3>,
    pub fallbacks: Counters<2>,
    pub token_ids: Counters<2>,
    pub tokenized: Counters<2>,
    pub retries: Counters<2>,
    pub transfers: Counters<3>,
    pub coerced: Counters<2>,
    pub pair_opened: Counters<1>,
    pub pairs_open: Gauges<1>,
    pub in_flight: Gauge,
    pub phase: Phases,
}

/// What became of TLS towards clients.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    pub renewals: Counters<1>,
    pub handshake_failures: Counter,
}

impl Tls {
    pub fn register(registry: &mut Registry) -> Self {
        let mut new = Registrar(registry);
        let renewals: Counters<1> = new.metric(
            "tls_renewals",
            "New certificate files found, by outcome: taken, or refused while the old certificate stays",
        );
        for outcome in ["taken", "refused"] {
            drop(renewals.get_or_create(&[("outcome", outcome.to_owned())]));
        }
        Self {
            renewals,
            handshake_failures: new.metric("tls_handshake_failures", "TLS handshakes of clients that failed"),
        }
    }
}

/// What became of the host's own background tasks.
#[derive(Debug, Clone)]
pub(super) struct Tasks {
    pub panics: Counters<1>,
}

impl Tasks {
    pub fn register(registry: &mut Registry) -> Self {
        let help =
            "Background tasks that failed and were started anew: each is a defect of this host, by task";
        Self { panics: Registrar(registry).metric("task_panics", help) }
    }
}

/// What became of spans.
#[derive(Debug)]
pub(super) struct Spans {
    pub exported: Counter,
    pub dropped: Counters<1>,
}

/// What policies did.
#[derive(Debug, Clone)]
pub(super) struct Policies {
    pub decisions: Counters<2>,
    pub faults: Counters<3>,
    pub swaps: Counter,
    pub refusals: Counters<1>,
    pub cache: Counters<1>,
    pub compiled_inside: Counter,
    pub put_aside: Counters<1>,
    pub generation: Gauge,
}

/// What is known of workers.
#[derive(Debug, Clone)]
pub(super) struct Workers {
    pub legs: Counters<3>,
    pub leg_failures: Counters<3>,
    pub breaker_opened: Counters<2>,
    pub breaker_open: Gauges<2>,
    pub up: Gauges<3>,
    pub draining: Gauges<2>,
    pub handles: Gauges<2>,
    pub kept_tokens: Gauges<2>,
    pub attached: Gauges<2>,
    pub safe_to_stop: Gauges<2>,
    pub requests: Gauges<2>,
    pub prefill_backlog: Gauges<2>,
    pub kv_blocks_free: Gauges<2>,
    pub kv_probes: Counters<3>,
    pub kv_pair_moves: Gauges<4>,
    pub kv_pool_moves: Gauges<2>,
    pub prefill_rate: Figures<2>,
    pub decode_step: Figures<2>,
}

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

impl Requests {
    pub fn register(registry: &mut Registry) -> Self {
        let phase = Family::new_with_constructor(histogram as fn() -> Histogram);
        registry.register_with_unit(
            "phase",
            format!(
                "Time spent, by pool, deciding policy and phase: {}; first_token is TTFT, per_token is TPOT",
                Phase::ALL.iter().map(|phase| phase.name()).collect::<Vec<_>>().join(", ")
            ),
            Unit::Seconds,
            phase.clone(),
        );
        let mut new = Registrar(registry);
        Self {
            total: new.metric("requests", "Requests by pool, endpoint and outcome"),
            fallbacks: new.metric("fallbacks", "Requests served otherwise than decided, by pool and reason"),
            token_ids: new
                .metric("token_ids", "Answers asked for their token ids, by pool and what they told of them"),
            tokenized: new.metric("prompts_tokenized", "Prompts whose token ids were wanted, by pool and result"),
            retries: new
                .metric("retries", "Legs sent again and attempts after the first, by pool and reason"),
            transfers: new.metric("transfers", "Prefill legs by pool, mode of transfer and what became of their KV handle, or of their blocks"),
            coerced: new
                .metric("transfer_mode_coerced", "Decisions for a transfer mode that the pool has not"),
            pair_opened: new
                .metric("pair_breaker_opened", "Times that a prefill/decode pair was found to fail"),
            pairs_open: new.metric("pair_breakers_open", "Prefill/decode pairs avoided now"),
            in_flight: new.metric("in_flight_requests", "Requests being served"),
            phase,
        }
    }
}

impl Spans {
    pub fn register(registry: &mut Registry) -> Self {
        let mut new = Registrar(registry);
        Self {
            exported: new.metric("trace_spans_exported", "Spans that the collector took"),
            dropped: new.metric("trace_spans_dropped", "Spans lost, by reason"),
        }
    }
}

impl Policies {
    pub fn register(registry: &mut Registry) -> Self {
        let mut new = Registrar(registry);
        let cache: Counters<1> =
            new.metric("policy_cache", "Policies looked up in the cache of compiled ones, by result");
        for result in sluice_policy::CACHE_USES {
            drop(cache.get_or_create(&[("result", result.into())]));
        }
        Self {
            cache,
            compiled_inside: new.metric(
                "policies_compiled_inside",
                "Policies compiled in the host's own process, for want of another: requests may have felt it",
            ),
            decisions: new.metric("decisions", "Routing decisions by policy and kind"),
            faults: new.metric("policy_faults", "Calls of a policy that failed, by policy, hook and kind"),
            swaps: new.metric("policy_swaps", "Policy sets put in force"),
            refusals: new.metric("policy_refusals", "Policy files refused, by policy"),
            put_aside: new
                .metric("policy_put_aside", "Versions put aside because they failed too often, by policy"),
            generation: new.metric("policy_generation", "Number of the policy set in force"),
        }
    }
}

impl Workers {
    pub fn register(registry: &mut Registry) -> Self {
        let mut new = Registrar(registry);
        Self {
            legs: new.metric("legs", "Legs sent, by pool, worker and leg"),
            leg_failures: new.metric("leg_failures", "Legs that failed, by pool, worker and kind"),
            breaker_opened: new.metric("worker_breaker_opened", "Times that a worker was found to fail"),
            breaker_open: new.metric("worker_breaker_open", "1 while a worker is spared"),
            up: new.metric(
                "worker_up",
                "1 while a worker answers probes and connects; one that drains or is spared is up too",
            ),
            draining: new.metric("worker_draining", "1 while a worker was told to take no new work"),
            handles: new.metric("worker_handles", "KV handles that a worker keeps blocks for"),
            kept_tokens: new.metric(
                "worker_kept_tokens",
                "Tokens of turns whose KV a decode worker keeps for the next one of their conversations",
            ),
            attached: new.metric(
                "worker_attached",
                "1 while a worker's engine is attached to this host, which is to move its KV",
            ),
            safe_to_stop: new.metric(
                "worker_safe_to_stop",
                "1 once a draining worker has no request, and no blocks to be read",
            ),
            requests: new.metric("worker_requests", "Requests of this host on a worker"),
            prefill_backlog: new.metric(
                "worker_prefill_backlog_tokens",
                "Prompt tokens of this host's requests that a worker has still to prefill",
            ),
            kv_blocks_free: new.metric("worker_kv_blocks_free", "KV blocks free at the last scrape"),
            kv_probes: new
                .metric("kv_probes", "Probes of whether KV moves, by pool, direction and what they showed"),
            kv_pair_moves: new
                .metric("kv_moves", "1 if KV moves between two workers, 0 if not, -1 if not known"),
            kv_pool_moves: new.metric(
                "pool_kv_moves",
                "1 if a pool's KV moves, 0 if not between some pair, -1 if not known",
            ),
            prefill_rate: new
                .metric("worker_prefill_tokens_per_second", "Measured prefill rate, 0 while unmeasured"),
            decode_step: new.metric(
                "worker_decode_step_seconds",
                "Measured time per generated token, 0 while unmeasured",
            ),
        }
    }
}

struct Registrar<'a>(&'a mut Registry);

impl Registrar<'_> {
    fn metric<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.0.register(name, help, metric.clone());
        metric
    }
}
