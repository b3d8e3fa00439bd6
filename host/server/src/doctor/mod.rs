//! `sluice doctor`: looks at every engine of a configuration as the host would use it, and says what is wrong.
//!
//! [`examine`] asks one worker, [`crate::kv_probe`] a pair; what that means is judged in [`findings`], on plain data,
//! and shown by [`report`].

pub mod attached;
pub mod examine;
pub mod findings;
pub mod report;
pub mod skew;
pub mod version;

use std::sync::Arc;
use std::time::Duration;

use sluice_core::facts::Role;
use sluice_core::kv_proof;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::config::{Config, Pool, Secrets};
use crate::ids::Ids;
use crate::kv_probe::{self, Prober};
use crate::upstream::Upstream;
use attached::Told;
use examine::{Examiner, WorkerSeen};
use report::{PairSeen, Report};

/// Workers examined at the same time: few enough for any host's descriptors.
const WORKERS_AT_ONCE: usize = 16;

/// How long the pairs of all pools may take together. A pair that moves takes a moment, one that hangs two legs' time;
/// pairs beyond are told as not probed.
pub const PAIRS_WITHIN: Duration = Duration::from_secs(180);

/// With what engines are asked, as the host would.
pub struct Doctor<'a> {
    /// Who they are.
    pub config: &'a Config,
    /// What they ask for.
    pub secrets: &'a Secrets,
    /// Connections to them.
    pub upstream: &'a Upstream,
    /// Times answers.
    pub clock: &'a Arc<dyn Clock>,
    /// What the running host says of its fleet; `None` where it moves no KV.
    pub told: Option<Result<Told, String>>,
}

/// Looks at all that a configuration names. `progress` is told what takes time.
pub async fn run(doctor: &Doctor<'_>, progress: impl Fn(&str)) -> Report {
    let &Doctor { config, secrets, upstream, clock, .. } = doctor;
    let ids = Ids::default();
    let workers = all_workers(doctor, &ids, &progress).await;
    let ends = clock.elapsed() + PAIRS_WITHIN;
    let mut pairs = Vec::new();
    for pool in config.pools.iter().filter(|pool| pool.mode.engines_move_kv()) {
        let headers = secrets.own_headers(&pool.name);
        let prober = Prober { upstream, clock: &**clock, headers: &headers };
        for (prefill, decode) in pairs_of(pool) {
            let unfit = [prefill, decode].into_iter().find_map(|worker| {
                let seen =
                    workers.iter().find(|seen| seen.pool == pool.name && seen.worker == worker.name)?;
                seen.unfit_for_probes(&pool.model).map(|why| format!("{} {why}", worker.name))
            });
            let not_probed = match unfit {
                None if clock.elapsed() >= ends => {
                    Some(format!("no time was left of {} s", PAIRS_WITHIN.as_secs()))
                }
                other => other,
            };
            let mut pair = PairSeen::new(pool, prefill, decode);
            match not_probed {
                Some(why) => pair.not_probed = Some(why),
                None => {
                    progress(&format!("{}: a probe from {} to {}", pool.name, prefill.name, decode.name));
                    let probed =
                        kv_probe::Pair { pool, prefill: &prefill.url, decode: &decode.url, tries_back: true };
                    pair.proof = Some(prober.pair(&probed, ids.next()).await);
                }
            }
            pairs.push(pair);
        }
    }
    let mut report = Report::new(config, workers, pairs);
    if let Some(what) = config.transfer.no_folder().filter(|_| config.moves_kv()) {
        report.add(findings::no_place_to_attach(what));
    }
    if let Some(told) = &doctor.told {
        attached::findings(config, &report.workers, told).into_iter().for_each(|finding| report.add(finding));
    }
    report
}

async fn all_workers(doctor: &Doctor<'_>, ids: &Ids, progress: impl Fn(&str)) -> Vec<WorkerSeen> {
    let &Doctor { config, secrets, upstream, clock, .. } = doctor;
    let places = Arc::new(Semaphore::new(WORKERS_AT_ONCE));
    let mut tasks = JoinSet::new();
    let all = config.pools.iter().flat_map(|pool| pool.workers.iter().map(move |worker| (pool, worker)));
    for (index, (pool, worker)) in all.enumerate() {
        let examiner = Examiner {
            upstream: upstream.clone(),
            clock: clock.clone(),
            headers: secrets.own_headers(&pool.name),
            connect_within: Duration::from_millis(config.server.connect_timeout_ms),
        };
        let (pool, worker, id, places) = (pool.clone(), worker.clone(), ids.next(), places.clone());
        tasks.spawn(async move {
            let _place = places.acquire().await;
            (index, examiner.look_at(&pool, &worker, id).await)
        });
    }
    progress(&format!("{} workers are looked at", tasks.len()));
    let mut seen = tasks.join_all().await;
    seen.sort_by_key(|(index, _)| *index);
    seen.into_iter().map(|(_, seen)| seen).collect()
}

fn pairs_of(pool: &Pool) -> Vec<(&crate::config::Worker, &crate::config::Worker)> {
    let of = |role| pool.workers.iter().filter(move |worker| worker.role == role).collect::<Vec<_>>();
    let (prefills, decodes) = (of(Role::Prefill), of(Role::Decode));
    let pairs = kv_proof::pairs(prefills.len(), decodes.len()).into_iter();
    pairs.map(|(prefill, decode)| (prefills[prefill], decodes[decode])).collect()
}
