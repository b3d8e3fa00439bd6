//! The host moves KV: the same load by pull, by push, and by push with turns kept, on one fleet that runs on.

mod figures;
mod report;

use std::time::Duration;

use anyhow::Context;
use sluice_harness::process::run_to_end;
use sluice_harness::progress::Progress;
use sluice_harness::workload::{self, Outcome, WorkloadPlan};
use sluice_harness::{Fleet, FleetPlan, PolicyFile};
use sluice_sim::Model;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use crate::{Options, POLICY};
use figures::Figures;

/// What is dropped as the policy's settings, and what comes of it. The first comes with the policy.
const STAGES: [Stage; 3] = [
    Stage { name: "pull", settings: "retain_ttl_ms = 0\n", pushes: false, keeps_turns: false },
    Stage { name: "push", settings: "push = true\nretain_ttl_ms = 0\n", pushes: true, keeps_turns: false },
    Stage {
        name: "push, turns kept",
        // Long enough for the next turn, short enough that what conversations leave behind does not fill the engines.
        settings: "push = true\nretain_ttl_ms = 2_000\n",
        pushes: true,
        keeps_turns: true,
    },
];

/// One way to move KV.
#[derive(Debug)]
struct Stage {
    name: &'static str,
    settings: &'static str,
    /// KV moves while its prompt is prefilled.
    pushes: bool,
    /// Decode engines keep turns.
    keeps_turns: bool,
}

/// Emulated engines of the same speed as in the first part, whose KV is large enough to weigh: 16 KiB a token, where an 8B
/// model has 128. They report progress every 256 tokens, and keep no prefix caches, so that all KV that is used moves.
const ENGINE: &str = "--prefill-tokens-per-s 20000 --decode-step-base-ms 6 --decode-step-per-sequence-ms 0.1 \
    --time-scale 1 --max-model-len 4096 --max-step-tokens 256 --no-prefix-caching";

/// KV bytes of a token.
const KV_BYTES_PER_TOKEN: usize = 16 * 1024;

/// 256 and 768 MiB of KV memory an engine: decode engines keep turns, too.
const PREFILL_MEMORY: &str = "--blocks 1024";
const DECODE_MEMORY: &str = "--blocks 3072";

/// One stage's load; it takes a fifth of this on two cores.
const STAGE_WITHIN: Duration = Duration::from_secs(60);

/// Until dropped settings decide; usually a few milliseconds.
const LIVE_WITHIN: Duration = Duration::from_secs(10);

/// For `sluice fleet`.
const COMMAND_WITHIN: Duration = Duration::from_secs(10);

/// All that was seen of a stage.
#[derive(Debug)]
struct Seen {
    stage: &'static Stage,
    /// The first generation of its settings.
    since_generation: u64,
    outcomes: Vec<Outcome>,
    expected_requests: usize,
    /// What the host counted meanwhile.
    figures: Figures,
    took: Duration,
}

/// The whole part: what still runs, and whether it was good.
pub async fn show(options: &Options) -> anyhow::Result<(Fleet, bool)> {
    println!(
        "\n2. THE HOST MOVES KV. 2 prefill and 2 decode emulators attach their KV memory to the host, which copies blocks\n\
         between them. Their speed is the same stated model, their KV 16 KiB a token; the copies are real, made by two\n\
         threads of the host beside all emulators on this machine. No engine has a prefix cache, so all KV that is used\n\
         moves. After a warm-up the same load comes three times, while the host runs on: {POLICY}.toml changes how KV moves.\n"
    );
    let fleet = start().await?;
    timeout(STAGE_WITHIN, warm_up(&fleet)).await.context("the warm-up does not end")??;
    let mut stages = Vec::new();
    for (number, stage) in STAGES.iter().enumerate() {
        let since_generation = change(&fleet, stage, number == 0).await?;
        let plan = plan(options, number);
        let seen = timeout(STAGE_WITHIN, load(&fleet, &plan, stage, since_generation)).await;
        let mut seen =
            seen.with_context(|| format!("{}: no end within {} s", stage.name, STAGE_WITHIN.as_secs()))??;
        check(&mut seen.outcomes).await?;
        stages.push(seen);
    }
    let good = report::print(&stages);
    let address = fleet.host.admin().base().trim_start_matches("http://").to_owned();
    let told = run_to_end(&["fleet", "--admin", &address], COMMAND_WITHIN).await?;
    println!("\nWhat operators see of it:\n$ sluice fleet\n{}", told.stdout);
    Ok((fleet, good))
}

async fn start() -> anyhow::Result<Fleet> {
    // Until engines were measured, whoever has the fewest requests.
    let policy = PolicyFile::policy(POLICY, "least-loaded")?;
    let plan = FleetPlan::hosted(2, 2).engines("", ENGINE).decided_by(policy);
    let plan = plan.engines("", &format!("--kv-bytes-per-token {KV_BYTES_PER_TOKEN}"));
    let mut plan = plan.engines("prefill", PREFILL_MEMORY).engines("decode", DECODE_MEMORY);
    plan.host.pool = format!("kv_bytes_per_token = {KV_BYTES_PER_TOKEN}\nmax_model_len = 4096\n");
    let fleet = plan.start().await.context("the fleet does not start")?;
    println!("host     {}  (admin {})", fleet.client().base(), fleet.host.admin().base());
    println!("policies {}", fleet.host.policy_folder().display());
    println!("least-loaded decides: warm-up");
    Ok(fleet)
}

/// Fills the engines' memory twice: neither the first stage nor what is measured of engines is to have the cost of pages
/// that are touched for the first time.
async fn warm_up(fleet: &Fleet) -> anyhow::Result<()> {
    let plan = WorkloadPlan {
        conversations: 100,
        turns: 1,
        at_once: 4,
        first_words: 2_000,
        later_words: 0,
        max_tokens: 2,
        seed: 99,
    };
    let mut running = workload::start_unchecked(fleet.client(), &plan);
    while let Some(outcome) = running.next().await {
        anyhow::ensure!(!outcome.failed(), "a request failed: {:?}", outcome.reply);
    }
    Ok(())
}

/// Other words each time, so that nothing of one stage helps the next.
fn plan(options: &Options, number: usize) -> WorkloadPlan {
    WorkloadPlan {
        conversations: 24,
        turns: options.turns,
        at_once: 4,
        first_words: 1_500,
        later_words: 200,
        max_tokens: 8,
        seed: 100 + number as u64,
    }
}

/// Compares all answers with the right ones, once nobody's time is measured.
async fn check(outcomes: &mut Vec<Outcome>) -> anyhow::Result<()> {
    let model = Model::new(0, KV_BYTES_PER_TOKEN)?;
    let mut checked = std::mem::take(outcomes);
    *outcomes = spawn_blocking(move || {
        checked.iter_mut().for_each(|outcome| outcome.check(model));
        checked
    })
    .await?;
    Ok(())
}

/// Drops settings, and the policy with the first ones; the generation that has them.
async fn change(fleet: &Fleet, stage: &Stage, is_first: bool) -> anyhow::Result<u64> {
    let before = fleet.host.policies().await?.generation;
    let dropped = Instant::now();
    let what = if is_first {
        fleet.host.drop_policy(&PolicyFile::policy(POLICY, "adaptive")?.settings(stage.settings))?;
        "adaptive".to_owned()
    } else {
        fleet.host.drop_settings(POLICY, stage.settings)?;
        format!("{POLICY}.toml")
    };
    let generation = fleet.host.until_generation_after(before, LIVE_WITHIN).await?;
    println!("{what} dropped, live after {} ms: {}", dropped.elapsed().as_millis(), stage.name);
    Ok(generation)
}

async fn load(
    fleet: &Fleet,
    plan: &WorkloadPlan,
    stage: &'static Stage,
    since_generation: u64,
) -> anyhow::Result<Seen> {
    let expected_requests = plan.conversations * plan.turns;
    let before = Figures::of(&fleet.host.metrics().await?);
    let started = Instant::now();
    let mut progress = Progress::new(expected_requests);
    let mut outcomes = Vec::with_capacity(expected_requests);
    let mut running = workload::start_unchecked(fleet.client(), plan);
    while let Some(outcome) = running.next().await {
        outcomes.push(outcome);
        progress.step(stage.name);
    }
    progress.clear();
    let took = started.elapsed();
    let figures = Figures::of(&fleet.host.metrics().await?).since(&before);
    Ok(Seen { stage, since_generation, outcomes, expected_requests, figures, took })
}
