//! Metrics of tenants and of the queue. Label values are configured names and a fixed set of reasons, all resolved
//! once at the start.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Waits worth telling apart, in seconds: from a place that was just becoming free to the longest anybody waits.
const WAIT_SECONDS: [f64; 14] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Stands for callers that are no tenant.
const NOBODY: &str = "none";

/// Why a request was not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue was full, and it was the first to go.
    Overloaded,
    /// It waited, and made room for another.
    Shed,
    /// It waited too long.
    QueueTimeout,
    /// Its tenant had as many requests as it may.
    TenantFull,
    /// Its tenant had not enough tokens left.
    TokensPerMinute,
    /// Its body found no room beside those of other requests.
    BodiesFull,
    /// It asked for more tokens than its tenant ever has.
    TokensAboveLimit,
}

impl Refusal {
    const ALL: [Self; 7] = [
        Self::Overloaded,
        Self::Shed,
        Self::QueueTimeout,
        Self::TenantFull,
        Self::TokensPerMinute,
        Self::BodiesFull,
        Self::TokensAboveLimit,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Overloaded => "overloaded",
            Self::Shed => "shed",
            Self::QueueTimeout => "queue_timeout",
            Self::TenantFull => "max_in_flight",
            Self::TokensPerMinute => "tokens_per_minute",
            Self::BodiesFull => "bodies_full",
            Self::TokensAboveLimit => "tokens_above_limit",
        }
    }
}

/// Counters and gauges of every tenant, by its account's position.
#[derive(Debug)]
pub struct AdmissionMetrics {
    tenants: Vec<TenantMetrics>,
    unknown: Counter,
    wait: Histogram,
}

#[derive(Debug)]
struct TenantMetrics {
    queued: Gauge,
    refused: [Counter; Refusal::ALL.len()],
    prompt: Counter,
    output: Counter,
}

impl AdmissionMetrics {
    /// Registers them for these tenants.
    pub fn register(registry: &mut Registry, tenants: &[String]) -> Self {
        let queued = Family::<[(&'static str, String); 1], Gauge>::default();
        let refused = Family::<[(&'static str, String); 2], Counter>::default();
        let tokens = Family::<[(&'static str, String); 2], Counter>::default();
        let wait = Histogram::new(WAIT_SECONDS);
        registry.register("queued_requests", "Requests that wait for a place, by tenant", queued.clone());
        let help = "Requests turned away before they reached an engine, by tenant and reason";
        registry.register("refused_requests", help, refused.clone());
        registry.register("tenant_tokens", "Tokens used, by tenant and kind", tokens.clone());
        let help = "Time spent waiting for a place, of requests that had to";
        registry.register_with_unit("queue_wait", help, Unit::Seconds, wait.clone());
        let counter =
            |family: &Family<[(&'static str, String); 2], Counter>, tenant: &str, label, value: &str| {
                family.get_or_create(&[("tenant", tenant.to_owned()), (label, value.to_owned())]).clone()
            };
        let each = tenants.iter().map(|name| TenantMetrics {
            queued: queued.get_or_create(&[("tenant", name.clone())]).clone(),
            refused: Refusal::ALL.map(|refusal| counter(&refused, name, "reason", refusal.name())),
            prompt: counter(&tokens, name, "kind", "prompt"),
            output: counter(&tokens, name, "kind", "output"),
        });
        let unknown = counter(&refused, NOBODY, "reason", "unknown_caller");
        Self { tenants: each.collect(), unknown, wait }
    }

    /// A request waits from now on.
    pub fn queued(&self, account: usize) {
        self.tenants[account].queued.inc();
    }

    /// A request waits no more.
    pub fn waited(&self, account: usize, wait: Duration) {
        self.tenants[account].queued.dec();
        self.wait.observe(wait.as_secs_f64());
    }

    /// A request was turned away.
    pub fn refused(&self, account: usize, refusal: Refusal) {
        self.tenants[account].refused[refusal as usize].inc();
    }

    /// A caller that is no tenant was turned away.
    pub fn refused_unknown(&self) {
        self.unknown.inc();
    }

    /// A request took these tokens.
    pub fn used(&self, account: usize, prompt_tokens: u64, output_tokens: u64) {
        self.tenants[account].prompt.inc_by(prompt_tokens);
        self.tenants[account].output.inc_by(output_tokens);
    }
}
