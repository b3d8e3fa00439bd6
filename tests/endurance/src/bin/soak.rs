//! `soak`: a million requests, one in a hundred spoilt. Is anything left over, and is anything wrong?
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use sluice_endurance::checked_load::{self, Tally};
use sluice_endurance::engines::Engines;
use sluice_endurance::memory::{self, Sample};
use sluice_harness::process::exit_code_of;
use sluice_harness::{Host, HostPlan, Mode, PolicyFile, ProcessTree, budget, until};
use tokio::time::{Instant, interval};

/// Engines of each role.
const ENGINES_PER_ROLE: usize = 3;

/// Clients at a time.
const CLIENTS: usize = 64;

/// How often an engine is killed and started again, over the run.
const RESTARTS: u64 = 48;

/// How long a killed engine stays dead: the host notices, and others do its work.
const DEAD_FOR: Duration = Duration::from_secs(1);

/// How long prefill engines keep blocks: those that nobody will fetch are free again soon.
const LEASE_MS: u64 = 5_000;

/// Until the engines hold nothing: the lease, with time to spare.
const IDLE_WITHIN: Duration = Duration::from_secs(30);

/// Between two looks at the host's memory.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Looks between two lines of progress.
const LOOKS_PER_LINE: usize = 20;

/// By how much the host's memory may rise over a run, after its first fifth: what an allocator keeps, never what a
/// million requests would leave behind if each left 16 bytes.
const RISE_BYTES_AT_MOST: f64 = 8e6;

/// Requests that may fail, in percent. With one leg in 200 spoilt all attempts fail about once in a million requests; the
/// rest are requests under way on an engine that is killed.
const FAILED_BELOW: f64 = 1.0;

/// Sends requests through a host to emulators of which one leg in 200 is spoilt: they answer 500, close, break off, stall,
/// hang, send garbage or no handle; and in turn they are killed and started again.
///
/// Every answer is compared with the right one. Ends with 0 only if none was wrong, the engines hold no block at the end,
/// nothing is booked, and the host's memory did not rise.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Options {
    /// Requests.
    #[arg(long, default_value_t = 1_000_000)]
    requests: u64,
    /// Another seed, other faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// More arguments of the emulators. `--engines=--fault-skip-kv-copy` must make the run fail: it proves that a wrong
    /// answer is seen.
    #[arg(long, default_value = "")]
    engines: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    exit_code_of(soak(&options)).await
}

async fn soak(options: &Options) -> anyhow::Result<bool> {
    let arguments = format!("--kv-lease-ms {LEASE_MS} {}", options.engines);
    let mut engines = Engines::start(ENGINES_PER_ROLE, &arguments, options.seed).await?;
    let mut host = start_host(&engines).await?;
    let tree = ProcessTree::of(host.process().pid().context("the host is gone")?);
    println!(
        "{} requests from {CLIENTS} clients through adaptive to {ENGINES_PER_ROLE} prefill and {ENGINES_PER_ROLE} decode \
         emulators; one leg in {} spoilt, {RESTARTS} kills",
        options.requests,
        sluice_endurance::fault_plan::LEGS_PER_FAULT
    );
    let started = Instant::now();
    let (tally, samples) = run(options, &mut engines, &host, tree).await?;
    println!(
        "{} requests in {:.0} s, {} legs spoilt, {} engines killed: {} right, {} failed, {} streams cut short, {} wrong",
        tally.requests(),
        started.elapsed().as_secs_f64(),
        engines.faults(),
        engines.restarts(),
        tally.right,
        tally.failed,
        tally.cut_short,
        tally.wrong
    );
    for fault in tally.faults() {
        println!("{fault}");
    }
    let in_flight = until("nothing to be in flight", IDLE_WITHIN, async || {
        (host.metrics().await.ok()?.sum("sluice_in_flight_requests", &[]) == 0.0).then_some(())
    });
    let in_flight = in_flight.await.err().map(|error| error.to_string());
    let busy: Vec<String> = engines.still_busy(IDLE_WITHIN).await.into_iter().chain(in_flight).collect();
    Ok(report(&tally, &samples, &busy))
}

async fn start_host(engines: &Engines) -> anyhow::Result<Host> {
    let mut plan = HostPlan::new(Mode::Pull).policy("adaptive");
    plan.pool.push_str(&format!("kv_lease_ms = {LEASE_MS}\n"));
    for (role, address) in engines.addresses() {
        plan = plan.worker(role, &format!("http://{address}"));
    }
    let host = Host::start(&plan, &[PolicyFile::policy("adaptive", "adaptive")?]).await?;
    host.until_ready().await?;
    Ok(host)
}

async fn run(
    options: &Options,
    engines: &mut Engines,
    host: &Host,
    tree: ProcessTree,
) -> anyhow::Result<(Tally, Vec<Sample>)> {
    let (mut tally, mut samples) = (Tally::default(), Vec::new());
    let kill_every = (options.requests / (RESTARTS + 1)).max(1);
    let mut dead_since: Option<Instant> = None;
    let mut looks = interval(LOOK_EVERY);
    let mut running = checked_load::start(host.client(), options.requests, CLIENTS);
    loop {
        tokio::select! {
            end = running.next() => {
                let Some(end) = end else { break };
                tally.count(end);
                let due = tally.requests() / kill_every > engines.restarts() as u64;
                if due && dead_since.is_none() && (engines.restarts() as u64) < RESTARTS {
                    engines.kill_next().await?;
                    dead_since = Some(Instant::now());
                }
            }
            _ = looks.tick() => {
                if dead_since.is_some_and(|since| since.elapsed() >= DEAD_FOR) {
                    engines.revive().await?;
                    dead_since = None;
                }
                samples.push(Sample { requests: tally.requests(), bytes: tree.resident_bytes() });
                if samples.len().is_multiple_of(LOOKS_PER_LINE) {
                    progress(options, &tally, &samples);
                }
            }
        }
    }
    if dead_since.is_some() {
        engines.revive().await?;
    }
    samples.push(Sample { requests: tally.requests(), bytes: tree.resident_bytes() });
    Ok((tally, samples))
}

fn progress(options: &Options, tally: &Tally, samples: &[Sample]) {
    eprintln!(
        "{} of {}: {} failed, {} cut short, {} wrong, host {:.1} MB",
        tally.requests(),
        options.requests,
        tally.failed,
        tally.cut_short,
        tally.wrong,
        samples.last().map_or(0.0, |sample| sample.bytes as f64 / 1e6)
    );
}

/// Prints the budgets; says whether all are met.
fn report(tally: &Tally, samples: &[Sample], busy: &[String]) -> bool {
    let failed = 100.0 * tally.failed as f64 / tally.requests().max(1) as f64;
    let line = memory::line(samples);
    let rise = line.map_or("too few samples".to_owned(), |line| {
        format!(
            "{:+.1} MB from {:.1} MB, {:+.2} bytes a request",
            line.rise_bytes / 1e6,
            line.first_bytes / 1e6,
            line.slope
        )
    });
    let is_flat = line.is_some_and(|line| line.rise_bytes <= RISE_BYTES_AT_MOST);
    for left in busy {
        println!("left over: {left}");
    }
    let budgets = [
        ("soak.wrong_answers", "0".to_owned(), tally.wrong.to_string(), tally.wrong == 0),
        ("soak.failed", format!("< {FAILED_BELOW} %"), format!("{failed:.4} %"), failed < FAILED_BELOW),
        ("soak.left_over", "0".to_owned(), busy.len().to_string(), busy.is_empty()),
        ("soak.memory", format!("<= {:.0} MB rise", RISE_BYTES_AT_MOST / 1e6), rise, is_flat),
    ];
    for (name, target, measured, is_met) in &budgets {
        println!("{}", budget::line(name, target, measured, *is_met));
    }
    budgets.iter().all(|(.., is_met)| *is_met)
}
