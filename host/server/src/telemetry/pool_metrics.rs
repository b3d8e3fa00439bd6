//! One pool's metrics and, in it, one policy's: handles resolved once, so that counting a request only touches atomics.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use sluice_core::verdict::TransferMode;

use super::counted::Counted;
use super::families::{Phases, Policies, Requests};
use super::labels::{Fallback, HandleFate, Label, Outcome, Phase, Retry, Source, TokenIds, Tokenized};
use crate::passthrough::paths::{PATHS, Path};
use crate::request::Endpoint;

/// Stands where a label has no value: no pool was found, no policy decided.
pub const NONE: &str = "none";

/// Stands for the policies beyond [`POLICIES_LABELLED`].
pub(super) const OTHERS: &str = "others";

/// Policy names with figures of their own in one pool: 4 times as many as a folder may hold at once. Names come and go
/// with files, and each that decided keeps its series for good.
pub(super) const POLICIES_LABELLED: usize = 256;

/// One pool's.
#[derive(Debug)]
pub struct PoolMetrics {
    pool: String,
    requests: Box<[Counted<Outcome>]>,
    /// Filled when a path is first asked for: most pools serve few of them.
    passed: [OnceLock<Counted<Outcome>>; PATHS.len()],
    fallbacks: Counted<Fallback>,
    token_ids: Counted<TokenIds>,
    tokenized: Counted<Tokenized>,
    retries: Counted<Retry>,
    /// By how they move.
    transfers: Box<[Counted<HandleFate>]>,
    coerced_push: Counter,
    pair_opened: Counter,
    pairs_open: Gauge,
    undecided: Arc<PolicyMetrics>,
    /// Those that decided here, few enough to be looked through.
    policies: ArcSwap<Vec<Arc<PolicyMetrics>>>,
    families: (Requests, Policies),
}

impl PoolMetrics {
    pub(super) fn resolve(pool: &str, requests: &Requests, policies: &Policies) -> Self {
        let by = |key: &'static str| move |value: String| [("pool", pool.to_owned()), (key, value)];
        let of_endpoint = |endpoint: &Endpoint| outcomes(pool, *endpoint, requests);
        Self {
            requests: Endpoint::ALL.iter().map(of_endpoint).collect(),
            passed: Default::default(),
            fallbacks: Counted::resolve(&requests.fallbacks, by("reason")),
            token_ids: Counted::resolve(&requests.token_ids, by("result")),
            tokenized: Counted::resolve(&requests.tokenized, by("result")),
            retries: Counted::resolve(&requests.retries, by("reason")),
            transfers: TransferMode::ALL.iter().map(|mode| transfers(pool, *mode, requests)).collect(),
            pair_opened: requests.pair_opened.get_or_create_owned(&[("pool", pool.to_owned())]),
            pairs_open: requests.pairs_open.get_or_create_owned(&[("pool", pool.to_owned())]),
            coerced_push: requests.coerced.get_or_create_owned(&by("mode")("push".to_owned())),
            undecided: Arc::new(PolicyMetrics::resolve(pool, NONE, requests, None)),
            policies: ArcSwap::default(),
            families: (requests.clone(), policies.clone()),
            pool: pool.to_owned(),
        }
    }

    /// A request ended.
    pub fn request(&self, endpoint: Endpoint, outcome: Outcome) {
        self.requests[endpoint.index()].inc(outcome);
    }

    /// A request that was passed on ended.
    pub fn passed(&self, path: Path, outcome: Outcome) {
        let (requests, _) = &self.families;
        self.passed[path.index()].get_or_init(|| outcomes(&self.pool, path, requests)).inc(outcome);
    }

    /// A request is served otherwise than decided.
    pub fn fallback(&self, reason: Fallback) {
        self.fallbacks.inc(reason);
    }

    /// An answer that was asked for its token ids told this of them.
    pub fn token_ids(&self, told: TokenIds) {
        self.token_ids.inc(told);
    }

    /// The token ids of a prompt were wanted.
    pub fn tokenized(&self, result: Tokenized) {
        self.tokenized.inc(result);
    }

    /// A leg is sent again, or another attempt is made.
    pub fn retry(&self, reason: Retry) {
        self.retries.inc(reason);
    }

    /// What became of a prefill leg's handle.
    pub fn transfer(&self, mode: TransferMode, fate: HandleFate) {
        self.transfers[mode.index()].inc(fate);
    }

    /// A push was asked for, which the pool has not.
    pub fn coerced_push(&self) {
        self.coerced_push.inc();
    }

    /// A prefill/decode pair's breaker opened.
    pub fn pair_opened(&self) {
        self.pair_opened.inc();
    }

    /// So many pairs' breakers are open.
    pub fn pairs_open(&self, count: usize) {
        self.pairs_open.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Those of requests that no policy has decided yet.
    pub fn undecided(&self) -> &Arc<PolicyMetrics> {
        &self.undecided
    }

    /// Those of the requests that this policy decides here. Made when it decides for the first time.
    pub fn policy(&self, name: &str) -> Arc<PolicyMetrics> {
        let find = |known: &[Arc<PolicyMetrics>]| known.iter().find(|known| known.policy == name).cloned();
        if let Some(known) = find(&self.policies.load()) {
            return known;
        }
        let name = if self.policies.load().len() < POLICIES_LABELLED { name } else { OTHERS };
        let (requests, policies) = &self.families;
        let new = Arc::new(PolicyMetrics::resolve(&self.pool, name, requests, Some(policies)));
        self.policies.rcu(|known| {
            let mut known = known.to_vec();
            if find(&known).is_none() && name != OTHERS {
                known.push(new.clone());
            }
            known
        });
        new
    }
}

fn transfers(pool: &str, mode: TransferMode, requests: &Requests) -> Counted<HandleFate> {
    Counted::resolve(&requests.transfers, |fate| {
        [("pool", pool.to_owned()), ("mode", mode.name().to_owned()), ("handle", fate)]
    })
}

fn outcomes(pool: &str, endpoint: impl Label, requests: &Requests) -> Counted<Outcome> {
    Counted::resolve(&requests.total, |outcome| {
        [("pool", pool.to_owned()), ("endpoint", endpoint.name().to_owned()), ("outcome", outcome)]
    })
}

/// One policy's in one pool.
#[derive(Debug)]
pub struct PolicyMetrics {
    policy: String,
    decisions: Option<Counted<Source>>,
    pool: String,
    /// Filled when a phase is first observed: a unified pool has no prefill, and each is some 27 series.
    phases: [OnceLock<Histogram>; Phase::ALL.len()],
    family: Phases,
}

impl PolicyMetrics {
    fn resolve(pool: &str, policy: &str, requests: &Requests, policies: Option<&Policies>) -> Self {
        let decisions = policies.map(|policies| {
            let labels = |kind: String| [("policy", policy.to_owned()), ("kind", kind)];
            Counted::resolve(&policies.decisions, labels)
        });
        Self {
            policy: policy.to_owned(),
            pool: pool.to_owned(),
            decisions,
            phases: Default::default(),
            family: requests.phase.clone(),
        }
    }

    /// The policy's name, or [`NONE`].
    pub fn name(&self) -> &str {
        &self.policy
    }

    /// A decision was taken in its name.
    pub fn decision(&self, source: Source) {
        if let Some(decisions) = &self.decisions {
            decisions.inc(source);
        }
    }

    /// Time spent in a phase.
    pub fn phase(&self, phase: Phase, spent: Duration) {
        let histogram = self.phases[phase.index()].get_or_init(|| {
            self.family.get_or_create_owned(&[
                ("pool", self.pool.clone()),
                ("policy", self.policy.clone()),
                ("phase", phase.name().to_owned()),
            ])
        });
        histogram.observe(spent.as_secs_f64());
    }
}
