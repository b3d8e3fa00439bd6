//! `swaps`: what swapping policies under load costs requests and memory, and how soon a dropped file decides.
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

mod drops;
mod load;
mod memory;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use sluice_harness::process::exit_code_of;
use sluice_harness::{FleetPlan, PolicyFile, ProcessTree};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::drops::{Drops, InForce};
use crate::load::{Asked, Asker, Stage};
use crate::memory::Memory;

/// Name of the file that is dropped over and over.
pub const POLICY: &str = "active";

/// Drops before the windows: more than the generations that a host still answers, so that what swaps leave behind for a
/// while is there already when memory is first looked at.
const WARM_UP_SWAPS: u32 = 32;

/// Sends requests at a fixed rate, in windows with and without policy swaps in turn, and checks every answer.
///
/// Requests are sent on schedule whether or not earlier ones are answered. Each decision must have been taken by a
/// policy set that was in force at some moment between the request's sending and its answer. Each file is new to the
/// host, which compiles it beside the requests; the next one comes when it decides.
///
/// Ends with 0 only if all budgets are met.
#[derive(Debug, Parser)]
#[command(name = "swaps")]
struct Options {
    /// Swaps, all in windows; 32 before them warm the host up.
    #[arg(long, default_value_t = 1_000)]
    swaps: u32,
    /// Requests per second.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Length of a window.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// At least between two drops, in milliseconds.
    #[arg(long, default_value_t = 100)]
    every_ms: u64,
    /// Time that engines take, as a share of their stated speed's.
    #[arg(long, default_value_t = 0.01)]
    time_scale: f64,
}

/// All that came of a run.
struct Seen {
    asked: Vec<Asked>,
    live_after: Vec<Duration>,
    /// After the warm-up, and at the end.
    memory: [Memory; 2],
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    exit_code_of(bench(&options)).await
}

async fn bench(options: &Options) -> anyhow::Result<bool> {
    println!(
        "{} requests/s through a host and two engine emulators, {} policy swaps in every other window of {} s",
        options.rate, options.swaps, options.seconds
    );
    let files = [PolicyFile::policy(POLICY, "round-robin")?, PolicyFile::policy(POLICY, "least-loaded")?];
    let mut fleet = FleetPlan::pull(1, 1)
        .engines("", &format!("--time-scale {}", options.time_scale))
        .decided_by(files[0].clone())
        .start()
        .await?;
    let host = ProcessTree::of(fleet.host.process().pid().context("the host is gone")?);
    let in_force = InForce::watched(fleet.host.admin()).await?;
    let (stage, seen_stage) = watch::channel(Stage::WarmUp);
    let mut load = JoinSet::new();
    load.spawn(load::run(Asker::of(&fleet, &in_force, seen_stage), options.rate));
    let mut drops = Drops::new(&fleet, &in_force, &files, Duration::from_millis(options.every_ms));
    let first = windows(&mut drops, &stage, host, options).await;
    stage.send_replace(Stage::Over);
    let asked = load.join_next().await.context("there is a load")??;
    let (first, live_after) = (first?, drops.live_after);
    let memory = [first, Memory::of(host, fleet.host.admin()).await?];
    Ok(report::print(&Seen { asked, live_after, memory }))
}

/// The warm-up, then windows in turn, a quiet one last. Says how memory was before the first swap of a window.
async fn windows(
    drops: &mut Drops<'_>,
    stage: &watch::Sender<Stage>,
    host: ProcessTree,
    options: &Options,
) -> anyhow::Result<Memory> {
    let window = Duration::from_secs(options.seconds);
    drops.some(WARM_UP_SWAPS, Duration::MAX).await?;
    stage.send_replace(Stage::Quiet);
    tokio::time::sleep(window).await;
    let warm = Memory::of(host, drops.admin()).await?;
    println!("warm: {warm}");
    let mut left = options.swaps;
    while left > 0 {
        stage.send_replace(Stage::Swapping);
        left -= drops.some(left, window).await?;
        stage.send_replace(Stage::Quiet);
        tokio::time::sleep(window).await;
        println!(
            "{} of {} swaps: {}",
            options.swaps - left,
            options.swaps,
            Memory::of(host, drops.admin()).await?
        );
    }
    Ok(warm)
}
