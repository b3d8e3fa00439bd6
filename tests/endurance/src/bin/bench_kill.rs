//! `bench-kill`: half of all engines killed at once in mid-run. Who notices?
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Parser;
use sluice_endurance::checked_load::{self, Tally};
use sluice_harness::process::exit_code_of;
use sluice_harness::progress::Progress;
use sluice_harness::{FleetPlan, PolicyFile, budget};
use tokio::time::{Instant, timeout};

/// Killed together: half of each role.
const VICTIMS: [&str; 4] = ["prefill-1", "prefill-3", "decode-0", "decode-2"];

/// Engines of each role.
const ENGINES_PER_ROLE: usize = 4;

/// Clients at a time: several requests are under way on each engine when it dies.
const CLIENTS: usize = 64;

/// Of retryable requests, in percent.
const SUCCESS_ABOVE: f64 = 99.9;

/// The whole run; it takes a fraction of this on two cores.
const RUN_WITHIN: Duration = Duration::from_secs(600);

/// How long prefill engines keep blocks: short, so that the end need not be waited for.
const LEASE_MS: u64 = 5_000;

/// Until the engines that are left hold no block: their leases, with time to spare.
const IDLE_WITHIN: Duration = Duration::from_secs(20);

/// Sends requests through a host to four prefill and four decode emulators, and kills two of each with SIGKILL, all in
/// one moment, after a third of the requests.
///
/// A request is retryable if no text of its answer had come. Every answer is compared with the right one; a wrong one, or a
/// stream that ends as if it were whole, fails the run, whatever the share of successes.
#[derive(Debug, Parser)]
#[command(name = "bench-kill")]
struct Options {
    /// Requests; one in four is a stream.
    #[arg(long, default_value_t = 24_000)]
    requests: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    exit_code_of(async { timeout(RUN_WITHIN, bench(&options)).await? }).await
}

async fn bench(options: &Options) -> anyhow::Result<bool> {
    let mut fleet = FleetPlan::pull(ENGINES_PER_ROLE, ENGINES_PER_ROLE)
        .engines("", &format!("--kv-lease-ms {LEASE_MS}"))
        .pool(&format!("kv_lease_ms = {LEASE_MS}\n"))
        .decided_by(PolicyFile::policy("adaptive", "adaptive")?)
        .start()
        .await?;
    println!(
        "{} requests from {CLIENTS} clients to {ENGINES_PER_ROLE} prefill and {ENGINES_PER_ROLE} decode emulators, adaptive \
         decides; {} are killed at once after a third",
        options.requests,
        VICTIMS.join(", ")
    );
    let started = Instant::now();
    let mut progress = Progress::new(usize::try_from(options.requests)?);
    let (mut tally, mut killed) = (Tally::default(), false);
    let mut running = checked_load::start(fleet.client(), options.requests, CLIENTS);
    while let Some(end) = running.next().await {
        tally.count(end);
        progress.step(if killed { "half of the engines are dead" } else { "" });
        if !killed && tally.requests() >= options.requests / 3 {
            fleet.kill_at_once(&VICTIMS).await?;
            killed = true;
        }
    }
    progress.clear();
    if !killed {
        bail!("too few requests to kill anything in between");
    }
    for name in fleet.names().iter().filter(|name| !VICTIMS.contains(&name.as_str())) {
        fleet.worker(name).until_idle(IDLE_WITHIN).await?;
    }
    for fault in tally.faults() {
        println!("{fault}");
    }
    let retries = fleet.host.metrics().await?.sum("sluice_retries_total", &[]);
    println!(
        "{} requests in {:.1} s: {} right, {} failed, {} streams cut short, {} wrong; the host tried again {retries} times",
        tally.requests(),
        started.elapsed().as_secs_f64(),
        tally.right,
        tally.failed,
        tally.cut_short,
        tally.wrong,
    );
    let success = 100.0 * tally.right as f64 / tally.retryable().max(1) as f64;
    let measured =
        format!("{success:.3} % of {} retryable, {} wrong answers", tally.retryable(), tally.wrong);
    let is_met = success > SUCCESS_ABOVE && tally.wrong == 0;
    println!("{}", budget::line("router.kill_success", &format!("{SUCCESS_ABOVE} %"), &measured, is_met));
    Ok(is_met)
}
