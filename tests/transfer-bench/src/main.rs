//! `bench-transfer`: what moving KV between two engines of one host costs.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]
#![allow(clippy::disallowed_methods, reason = "a bench takes the time of its own threads, and paces them")]

mod blocks;
mod copies;
mod planning;
mod rounds;
mod sides;
mod tail;

use std::process::ExitCode;

use clap::Parser;

/// The shared-memory fabric beside `memcpy` on one thread, over the same bytes of the same memory.
///
/// Rounds are interleaved and of each case the best one counts. A transfer is done when its completion was polled:
/// the sink has all bytes. `cold` memory is far larger than the last-level cache, `warm` memory fits into it.
#[derive(Debug, Parser)]
#[command(name = "bench-transfer")]
struct Options {
    /// Rounds.
    #[arg(long, default_value_t = 40)]
    rounds: usize,
    /// Bytes of a cold transfer, in MiB: several times the last-level cache.
    #[arg(long, default_value_t = 192)]
    cold_mib: u64,
    /// Bytes of a warm transfer, in MiB: both sides of it fit into the cache of one core.
    #[arg(long, default_value_t = 1)]
    warm_mib: u64,
    /// A few rounds, for trying.
    #[arg(long)]
    quick: bool,
}

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
    let rounds = if options.quick { 3 } else { options.rounds };
    println!("{rounds} rounds, best round of each figure\n");
    copies::run(rounds, options.cold_mib << 20, options.warm_mib << 20)?;
    tail::run(rounds)?;
    planning::run(rounds)
}
