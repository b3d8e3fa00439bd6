//! What goes wrong in the field, as tables of cases, on real sockets: clients that leave, engines that die, freeze or
//! talk nonsense, KV that does not move.
//!
//! A case brings one request to a point of its life, lets something happen there, and then looks at what all cases have
//! in common: nobody got another's words, engines have their blocks back, nothing is booked. Every prompt begins with a
//! nonce, so that the right answer to one request is wrong for all others.

mod black_hole;
mod cancels;
mod deaths;
mod odd_engine;
mod points;
mod reach;
mod restarts;
mod silence;
mod stale;
mod upstreams;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use sluice_harness::{Ask, Fleet, FleetPlan, PolicyFile, until};
use sluice_sim::words;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};

use crate::{SOON, nothing_left_booked, right};

/// Cases of a table that run side by side: most of their time is waiting.
const AT_ONCE: usize = 4;

/// How long prefill engines keep blocks, told to the host too: a transfer may begin 2 s after the prefill (the lease
/// less 2 s to connect and a margin of 1 s), and what is stranded is soon seen to come back.
const LEASE_MS: u64 = 5_000;

/// Words of a usual prompt.
const PROMPT_WORDS: usize = 40;

/// How the work of a request is shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Unified,
    /// Decode is chosen with prefill.
    Early,
    /// Decode is chosen after prefill.
    Late,
    /// The host moves KV once the prefill is done.
    Brought,
    /// The host moves KV while both work.
    Pushed,
}

impl Way {
    /// So many workers of each role, behind gates. Prefills take 0.5 ms a token, in steps of 32 ms; decode steps 4 ms.
    fn plan(self, each: usize) -> FleetPlan {
        let engines = format!(
            "--time-scale 1 --prefill-tokens-per-s 2000 --max-step-tokens 64 --decode-step-base-ms 4 \
             --kv-lease-ms {LEASE_MS}"
        );
        let plan = match self {
            Self::Unified => FleetPlan::unified(each),
            Self::Early => FleetPlan::pull(each, each),
            Self::Late => {
                let adaptive = PolicyFile::policy("adaptive", "adaptive").unwrap();
                FleetPlan::pull(each, each).decided_by(adaptive.settings("late_binding = true"))
            }
            Self::Brought | Self::Pushed => {
                let policy = PolicyFile::guest("as-told", "transfer-as-told").unwrap();
                let how = if self == Self::Pushed { "transfer = \"push\"" } else { "transfer = \"pull\"" };
                FleetPlan::hosted(each, each).decided_by(policy.settings(how))
            }
        };
        plan.engines("", &engines).pool(&format!("kv_lease_ms = {LEASE_MS}\n")).gated()
    }

    fn has_two_legs(self) -> bool {
        self != Self::Unified
    }

    /// Whether engines fetch KV by themselves, with what a prefill's answer says.
    fn is_pull(self) -> bool {
        matches!(self, Self::Early | Self::Late)
    }
}

/// A request whose prompt begins with a nonce.
fn nonce(number: u64, prompt_words: usize, max_tokens: usize, streams: bool) -> Ask {
    let ask = Ask::completion(&format!("[{number}]{}", words(number, prompt_words)), max_tokens);
    if streams { ask.streamed() } else { ask }
}

/// Runs all cases of a table, some side by side; all that fail are named.
async fn each<C, F>(cases: Vec<C>, run: fn(u64, C) -> F)
where
    C: Debug,
    F: Future<Output = ()> + 'static,
{
    LocalSet::new().run_until(side_by_side(cases, run)).await;
}

async fn side_by_side<C, F>(cases: Vec<C>, run: fn(u64, C) -> F)
where
    C: Debug,
    F: Future<Output = ()> + 'static,
{
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    let mut names = BTreeMap::new();
    for (number, case) in (1..).zip(cases) {
        let name = format!("{case:?}");
        let (places, case) = (places.clone(), run(number, case));
        let id = running
            .spawn_local(async move {
                let _place = places.acquire_owned().await.unwrap();
                case.await;
            })
            .id();
        names.insert(id, name);
    }
    assert!(!names.is_empty(), "a table without cases proves nothing");
    let mut failed = Vec::new();
    while let Some(ended) = running.join_next_with_id().await {
        if let Err(error) = ended {
            failed.push(format!("{}: {error}", names[&error.id()]));
        }
    }
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), names.len(), failed.join("\n"));
}

/// What became of handles, by name, without what did not happen.
async fn handles(fleet: &Fleet) -> BTreeMap<&'static str, u32> {
    let metrics = fleet.host.metrics().await.unwrap();
    let counts =
        ["dispatched", "absent", "unusable", "expired", "stranded", "abandoned", "released", "unreleased"]
            .map(|fate| (fate, metrics.sum("sluice_transfers_total", &[("handle", fate)]) as u32));
    counts.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// As when it started: every block of every living engine is free, nothing is booked, and requests are answered right.
async fn as_before(fleet: &Fleet, gone: &[&str], number: u64) {
    let names: Vec<_> =
        fleet.names().iter().map(String::as_str).filter(|name| !gone.contains(name)).collect();
    for name in &names {
        fleet.worker(name).until_idle(SOON).await.unwrap();
    }
    nothing_left_booked(&fleet.host, &names).await;
    right(fleet.client(), &nonce(number + 1_000_000, PROMPT_WORDS, 4, false)).await;
    right(fleet.client(), &nonce(number + 2_000_000, PROMPT_WORDS, 4, true)).await;
    for name in &names {
        fleet.worker(name).until_idle(SOON).await.unwrap();
    }
}

/// Waits until a metric of the host is what it should be, and is then sure that it is no more.
async fn counted(fleet: &Fleet, name: &str, labels: &[(&str, &str)], wanted: f64) {
    fleet.host.until_metric(name, labels, |count| count >= wanted, SOON).await.unwrap();
    assert_eq!(fleet.host.metrics().await.unwrap().sum(name, labels), wanted, "{name} {labels:?}");
}

/// Waits for a figure of an engine's own state, as by `/sequences/running`.
async fn until_state(fleet: &Fleet, worker: &str, pointer: &str, wanted: impl Fn(u64) -> bool) {
    until(&format!("{pointer} of {worker}"), SOON, async || {
        let state = fleet.worker(worker).state().await.ok()?;
        wanted(state.pointer(pointer)?.as_u64()?).then_some(())
    })
    .await
    .unwrap();
}
