//! Engines that move KV themselves: a workload, two swaps, one broken file.

mod report;

use std::time::Duration;

use anyhow::Context;
use sluice_harness::progress::Progress;
use sluice_harness::workload::{self, Outcome, WorkloadPlan};
use sluice_harness::{Fleet, FleetPlan, PolicyFile};
use tokio::time::{Instant, timeout};

use crate::{Options, POLICY};

/// The policies, in the order of their turns.
const POLICIES: [&str; 3] = ["round-robin", "least-loaded", "adaptive"];

/// What the emulated engines are like. Prompts of this workload take them about as long as an 8B model takes on one
/// GPU; the KV cache of each holds some, but not all, of the conversations under way.
const ENGINE: &str = "--time-scale 1 --prefill-tokens-per-s 20000 --decode-step-base-ms 6 \
    --decode-step-per-sequence-ms 0.1 --blocks 2048 --max-model-len 8192";

/// The whole workload; it takes a quarter of this on two cores.
const RUN_WITHIN: Duration = Duration::from_secs(50);

/// Until a dropped file decides, or is refused; usually a tenth of a second.
const LIVE_WITHIN: Duration = Duration::from_secs(10);

/// One policy's turn.
#[derive(Debug)]
struct Turn {
    /// Which policy.
    pub policy: &'static str,
    /// The first generation it decided in.
    pub since_generation: u64,
    /// From the dropping of its file; `None` for the one that was there at the start.
    pub live_after: Option<Duration>,
    /// KV bytes that engines had moved when it came.
    pub bytes_before: f64,
}

/// All that was seen.
#[derive(Debug)]
struct Seen {
    /// Turns, in order.
    pub turns: Vec<Turn>,
    /// KV bytes that engines had moved at the end.
    pub bytes_at_end: f64,
    /// All requests.
    pub outcomes: Vec<Outcome>,
    /// How many there should be.
    pub expected_requests: usize,
    /// Why the broken file was refused.
    pub refusal: Option<String>,
    /// From the first request to the last answer.
    pub took: Duration,
}

/// The whole part: what still runs, and whether it was good.
pub async fn show(options: &Options) -> anyhow::Result<(Fleet, bool)> {
    introduce(options);
    let fleet = start().await?;
    let seen = run(&fleet, options).await?;
    Ok((fleet, report::print(&seen)))
}

fn introduce(options: &Options) {
    println!(
        "1. ENGINES MOVE KV. A Sluice host with 2 prefill and 2 decode engines. The engines are emulators: they speak vLLM's\n\
         wire and move real KV bytes, their speed is a stated model (20,000 prompt tokens/s, 6 ms a decode step, a KV cache\n\
         of 32,000 tokens each), and their words mean nothing, but are wrong whenever the KV is.\n\
         {} conversations of {} turns follow, {} at a time; in mid-run the policy is swapped twice by dropping a file.\n",
        options.conversations, options.turns, options.at_once
    );
}

/// Starts engines and host, with the first policy in its folder.
async fn start() -> anyhow::Result<Fleet> {
    let plan = FleetPlan::pull(2, 2).engines("", ENGINE).decided_by(PolicyFile::policy(POLICY, POLICIES[0])?);
    let plan = FleetPlan { can_prefill: true, ..plan };
    let fleet = plan.start().await.context("the fleet does not start")?;
    println!("host     {}  (admin {})", fleet.client().base(), fleet.host.admin().base());
    println!("policies {}", fleet.host.policy_folder().display());
    println!("{} decides", POLICIES[0]);
    Ok(fleet)
}

/// Runs the workload to its end, swapping policies at a third and two thirds of it; half-way a broken file comes.
async fn run(fleet: &Fleet, options: &Options) -> anyhow::Result<Seen> {
    timeout(RUN_WITHIN, run_unbounded(fleet, options))
        .await
        .with_context(|| format!("the workload did not end within {} s", RUN_WITHIN.as_secs()))?
}

async fn run_unbounded(fleet: &Fleet, options: &Options) -> anyhow::Result<Seen> {
    let plan = WorkloadPlan {
        conversations: options.conversations,
        turns: options.turns,
        at_once: options.at_once,
        first_words: 1_500,
        later_words: 120,
        max_tokens: 40,
        seed: 1,
    };
    let total = plan.conversations * plan.turns;
    let started = Instant::now();
    let mut progress = Progress::new(total);
    let mut turns = vec![Turn {
        policy: POLICIES[0],
        since_generation: fleet.host.policies().await?.generation,
        live_after: None,
        bytes_before: fleet.bytes_moved().await?,
    }];
    let (mut outcomes, mut refusal) = (Vec::with_capacity(total), None);
    let mut running = workload::start(fleet.client(), &plan);
    while let Some(outcome) = running.next().await {
        outcomes.push(outcome);
        let policy = turns[turns.len() - 1].policy;
        progress.step(policy);
        let done = outcomes.len();
        if done == total * turns.len() / POLICIES.len() && turns.len() < POLICIES.len() {
            let turn = swap(fleet, POLICIES[turns.len()]).await?;
            progress.clear();
            let live_after_ms = turn.live_after.map_or(0, |time| time.as_millis());
            println!("{} dropped, live after {live_after_ms} ms, request {done} of {total}", turn.policy);
            turns.push(turn);
        } else if done == total / 2 {
            refusal = Some(drop_broken(fleet).await?);
            progress.clear();
            println!("a broken file dropped and refused, {policy} still decides, request {done} of {total}");
        }
    }
    progress.clear();
    let bytes_at_end = fleet.bytes_moved().await?;
    Ok(Seen { turns, bytes_at_end, outcomes, expected_requests: total, refusal, took: started.elapsed() })
}

async fn swap(fleet: &Fleet, policy: &'static str) -> anyhow::Result<Turn> {
    let before = fleet.host.policies().await?.generation;
    let dropped = Instant::now();
    fleet.host.drop_policy(&PolicyFile::policy(POLICY, policy)?)?;
    let since_generation = fleet.host.until_generation_after(before, LIVE_WITHIN).await?;
    let live_after = Some(dropped.elapsed());
    Ok(Turn { policy, since_generation, live_after, bytes_before: fleet.bytes_moved().await? })
}

/// Half of a policy, over the one in force.
async fn drop_broken(fleet: &Fleet) -> anyhow::Result<String> {
    fleet.host.drop_policy(&PolicyFile::policy(POLICY, POLICIES[2])?.truncated())?;
    let listed = fleet.host.until_refused(POLICY, LIVE_WITHIN).await?;
    listed.refusal.context("a refused file has a reason")
}
