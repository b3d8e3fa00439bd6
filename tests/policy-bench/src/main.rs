//! `bench-policy`: what a policy costs the host.
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use sluice_harness::artifacts;
use sluice_policy_bench::rounds::Plan;
use sluice_policy_bench::{calls, load, ring, swaps};

/// Times calls by rows and by hook, through WASM and natively; a decision's record, loading, faults, and swaps under load.
///
/// Rounds are interleaved. Of each figure the best round counts, for WASM and native code alike; answers are checked.
#[derive(Debug, Parser)]
#[command(name = "bench-policy")]
struct Options {
    /// Rounds.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// One case's turn in a round, in milliseconds.
    #[arg(long, default_value_t = 50)]
    turn_ms: u64,
    /// Swaps under load.
    #[arg(long, default_value_t = 100)]
    swaps: usize,
    /// A few short rounds, for trying.
    #[arg(long)]
    quick: bool,
    /// Only the calls: what a profiler should see.
    #[arg(long)]
    calls: bool,
}

/// Faults whose recovery is timed.
const FAULTS: usize = 50;

fn main() -> ExitCode {
    match bench(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(options: &Options) -> anyhow::Result<()> {
    let (rounds, turn_ms, swaps, faults) = if options.quick {
        (5, 10, 10, 10)
    } else {
        (options.rounds, options.turn_ms, options.swaps, FAULTS)
    };
    let plan = Plan { rounds, turn: Duration::from_millis(turn_ms) };
    println!("{rounds} rounds of {turn_ms} ms a case, best round of each figure\n");
    {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("adaptive.wasm"), artifacts::policy("adaptive")?)?;
        let (_host, policy) = load::open(folder.path(), "adaptive")?;
        calls::run(&policy, plan)?;
    }
    if options.calls {
        return Ok(());
    }
    ring::run(plan)?;
    load::stages(plan)?;
    load::faults(faults)?;
    swaps::run(swaps)
}
