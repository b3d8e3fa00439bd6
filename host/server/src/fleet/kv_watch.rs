//! Proving, while the host serves, that KV really moves: one task a pull pool probes its pairs and writes what it
//! finds for `/ready`, metrics and the log. Nothing waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::facts::Role;
use sluice_core::health::State;
use sluice_core::kv_proof::{self, Back, Last, Outcome, Verdict};
use sluice_core::load::Share;
use tokio::task::JoinSet;

use super::kv_state::{BackState, KvState, PairState};
use super::{Booking, Fleet, Pool, Worker};
use crate::clock::millis;
use crate::config::PoolMode;
use crate::ids::Ids;
use crate::kv_probe::{self, Prober, Proof};
use crate::restarting::restarting;
use crate::telemetry::Telemetry;
use crate::telemetry::labels::KvWay;
use crate::upstream::Upstream;

/// Between looks for a pair that is to be probed.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Starts a task for each pull pool that is to be probed. One that fails starts anew. Dropping the set ends them.
pub fn start(fleet: &Fleet, upstream: &Upstream, telemetry: &Arc<Telemetry>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for pool in fleet.pools().iter().filter(|pool| pool.is_probed_for_kv()) {
        let watch = Watch {
            pool: pool.clone(),
            upstream: upstream.clone(),
            telemetry: telemetry.clone(),
            ids: Arc::default(),
        };
        tasks.spawn(restarting("kv_watch", telemetry.clone(), move || watch.clone().run()));
    }
    tasks
}

impl Pool {
    /// Whether the host probes this pool.
    pub fn is_probed_for_kv(&self) -> bool {
        self.config.mode.engines_move_kv() && self.config.probe_kv
    }
}

/// A pair that could be probed now.
struct Pair {
    prefill: Arc<Worker>,
    decode: Arc<Worker>,
    incarnations: (u32, u32),
}

impl Pair {
    fn key(&self) -> Key {
        (self.prefill.id, self.decode.id)
    }
}

type Key = (u64, u64);

/// What the last probe of a pair showed.
struct Known {
    incarnations: (u32, u32),
    at_ms: u64,
    outcome: Outcome,
    back: Option<Back>,
}

impl Known {
    /// As far as it is to be probed again. What hangs is not asked the same once more.
    fn last(&self) -> Last {
        let back = self.back.as_ref().filter(|back| !back.hangs()).map(Back::verdict);
        let verdict = Verdict::of_pairs([self.outcome.verdict()].into_iter().chain(back));
        Last { verdict, at_ms: self.at_ms, incarnations: self.incarnations }
    }
}

#[derive(Clone)]
struct Watch {
    pool: Arc<Pool>,
    upstream: Upstream,
    telemetry: Arc<Telemetry>,
    ids: Arc<Ids>,
}

impl Watch {
    async fn run(self) {
        let mut known: BTreeMap<Key, Known> = BTreeMap::new();
        loop {
            let pairs = self.pairs();
            // What is no pair any more is forgotten, so the map is bounded by the pairs.
            known.retain(|key, _| pairs.iter().any(|pair| pair.key() == *key));
            self.publish(&pairs, &known);
            let now_ms = millis(self.pool.now());
            let due = pairs.iter().find(|pair| {
                let last = known.get(&pair.key()).map(Known::last);
                kv_proof::is_due(last.as_ref(), pair.incarnations, now_ms)
            });
            let Some(pair) = due else {
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            };
            let before = known.remove(&pair.key());
            let hung = before.as_ref().and_then(|before| {
                let is_same = before.incarnations == pair.incarnations;
                before.back.clone().filter(|back| is_same && back.hangs())
            });
            let (outcome, back) = self.probe(pair, hung).await;
            self.tell(pair, &outcome, before.as_ref().map(|before| before.outcome.verdict()));
            if let Some(back) = &back {
                self.tell_back(pair, back, before.and_then(|before| before.back));
            }
            let at_ms = millis(self.pool.now());
            known.insert(pair.key(), Known { incarnations: pair.incarnations, at_ms, outcome, back });
        }
    }

    /// Pairs of workers that are up and take work, the same ones while those do not change.
    fn pairs(&self) -> Vec<Pair> {
        let open = |role| -> Vec<(Arc<Worker>, u32)> {
            let workers = self.pool.workers.iter().filter(|worker| worker.role == role);
            let open = workers.filter_map(|worker| {
                let seen = worker.seen();
                let is_open = seen.health.state == State::Up && seen.draining_since.is_none();
                is_open.then(|| (worker.clone(), seen.incarnation))
            });
            open.collect()
        };
        let (prefills, decodes) = (open(Role::Prefill), open(Role::Decode));
        let pairs = kv_proof::pairs(prefills.len(), decodes.len()).into_iter();
        pairs
            .map(|(prefill, decode)| {
                let ((prefill, first), (decode, second)) = (&prefills[prefill], &decodes[decode]);
                Pair { prefill: prefill.clone(), decode: decode.clone(), incarnations: (*first, *second) }
            })
            .collect()
    }

    /// `hung`: the way back, where these starts of the engines are known to hang on it.
    async fn probe(&self, pair: &Pair, hung: Option<Back>) -> (Outcome, Option<Back>) {
        // Draining workers wait for the probe as for any request.
        let share = Share { requests: 1, ..Share::default() };
        let _booked = [&pair.prefill, &pair.decode].map(|worker| Booking::new(worker.clone(), share));
        let kept = pair.prefill.hold_handle(self.pool.clock(), self.pool.config.kv_lease_ms);
        let headers = self.pool.own_headers();
        let prober = Prober { upstream: &self.upstream, clock: &**self.pool.clock(), headers: &headers };
        let config = &self.pool.config;
        let probed = kv_probe::Pair {
            pool: config,
            prefill: &pair.prefill.url,
            decode: &pair.decode.url,
            tries_back: hung.is_none(),
        };
        let Proof { outcome, back, blocks_left, turn_left, .. } = prober.pair(&probed, self.ids.next()).await;
        if !blocks_left {
            kept.over();
        }
        if let Some(why) = turn_left {
            let (pool, decode) = (&config.name, &pair.decode.name);
            self.telemetry.warn_once(&format!("probe's turn {pool} {decode}"), || {
                format!(
                    "worker {decode:?} of pool {pool:?} keeps a probe's KV until decoder_kv_blocks_ttl is over: {why}"
                )
            });
        }
        (outcome, hung.or(back))
    }

    fn tell(&self, pair: &Pair, outcome: &Outcome, before: Option<Verdict>) {
        let (pool, verdict) = (&self.pool.config.name, outcome.verdict());
        let (prefill, decode) = (&pair.prefill.name, &pair.decode.name);
        self.telemetry.metrics.kv_probe(pool, prefill, decode, KvWay::There, verdict);
        if before == Some(verdict) {
            return;
        }
        let cure = outcome.cure().unwrap_or_default();
        match verdict {
            Verdict::Moved => {
                tracing::info!(pool, prefill, decode, "KV moves: {outcome}");
                self.compare_kv_bytes(outcome);
            }
            Verdict::NotMoved => {
                let harm = outcome.harm().unwrap_or_default();
                tracing::error!(pool, prefill, decode, "KV DOES NOT MOVE: {outcome}. {harm}. Cure: {cure}");
            }
            Verdict::Unproven => {
                tracing::warn!(pool, prefill, decode, "not known whether KV moves: {outcome}. Cure: {cure}");
            }
        }
    }

    fn tell_back(&self, pair: &Pair, back: &Back, before: Option<Back>) {
        let (pool, verdict) = (&self.pool.config.name, back.verdict());
        let (prefill, decode) = (&pair.prefill.name, &pair.decode.name);
        self.telemetry.metrics.kv_probe(pool, prefill, decode, KvWay::Back, verdict);
        if before.is_some_and(|before| before.verdict() == verdict) {
            return;
        }
        let cure = back.cure().unwrap_or_default();
        match verdict {
            Verdict::Moved => tracing::info!(pool, prefill, decode, "kept turns come back: {back}"),
            Verdict::NotMoved => {
                let harm = back.harm().unwrap_or_default();
                tracing::error!(
                    pool,
                    prefill,
                    decode,
                    "KEPT TURNS DO NOT COME BACK: {back}. {harm}. Cure: {cure}"
                );
            }
            Verdict::Unproven => {
                tracing::warn!(
                    pool,
                    prefill,
                    decode,
                    "not known whether kept turns come back: {back}. Cure: {cure}"
                );
            }
        }
    }

    fn compare_kv_bytes(&self, outcome: &Outcome) {
        let config = &self.pool.config;
        let configured = config.kv_bytes_per_token;
        if let Some(seen) = outcome.other_kv_bytes_per_token(config.block_tokens, configured) {
            tracing::warn!(
                pool = config.name,
                "{seen} KV bytes a token moved, and the pool says kv_bytes_per_token = {configured}: policies weigh \
                 transfers wrong. Cure: kv_bytes_per_token = {seen}"
            );
        }
    }

    fn publish(&self, pairs: &[Pair], known: &BTreeMap<Key, Known>) {
        let comes_back = self.pool.config.mode == PoolMode::Bidirectional;
        let states = pairs.iter().map(|pair| {
            let known = known.get(&pair.key());
            let outcome = known.map(|known| &known.outcome);
            let back = known.and_then(|known| known.back.as_ref());
            PairState {
                prefill: pair.prefill.name.clone(),
                decode: pair.decode.name.clone(),
                verdict: outcome.map_or(Verdict::Unproven, Outcome::verdict),
                what: outcome.map_or_else(|| "not probed yet".to_owned(), Outcome::to_string),
                cure: outcome.and_then(Outcome::cure),
                harm: outcome.and_then(Outcome::harm),
                back: comes_back.then(|| BackState::of(back)),
            }
        });
        let pairs: Vec<_> = states.collect();
        let metrics = &self.telemetry.metrics;
        let verdict = Verdict::of_pairs(pairs.iter().map(|pair| pair.verdict));
        metrics.kv_moves(&self.pool.config.name, KvWay::There, verdict);
        let backs = pairs.iter().filter_map(|pair| pair.back.as_ref()).map(|back| back.verdict);
        let back = comes_back.then(|| Verdict::of_pairs(backs));
        if let Some(back) = back {
            metrics.kv_moves(&self.pool.config.name, KvWay::Back, back);
        }
        self.pool.set_kv(KvState { verdict, back, pairs });
    }
}
