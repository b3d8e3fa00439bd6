//! `bench-transfer`: what moving KV between two engines of one host costs.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]
#![allow(clippy::disallowed_methods, reason = "a bench takes the time of its own threads, and paces them")]

mod across;
mod blocks;
mod copies;
mod planning;
mod rounds;
mod sides;
mod tail;

use std::path::PathBuf;
use std::process::ExitCode;

use across::NixlAt;
use clap::{Parser, Subcommand};

/// The shared-memory fabric beside `memcpy` on one thread, over the same bytes of the same memory; transfers between
/// processes, beside NIXL's; what decode waits for after a prefill whose KV is pushed.
///
/// Rounds are interleaved and of each case the best one counts, where no other is named. A transfer is done when its completion was polled:
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
    /// A Python that has NIXL, to compare with.
    #[arg(long)]
    nixl_python: Option<PathBuf>,
    /// What it is to run.
    #[arg(long, default_value = "tests/peers/nixl/nixl_bench.py")]
    nixl_script: PathBuf,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One of the engines of this bench, which starts them itself.
    #[command(hide = true)]
    Engine {
        /// Where the host listens.
        socket: PathBuf,
        /// Which one.
        name: String,
        /// Bytes of its memory.
        slab_bytes: u64,
    },
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
    if let Some(Role::Engine { socket, name, slab_bytes }) = &options.role {
        return across::run_engine(socket, name, *slab_bytes);
    }
    let rounds = if options.quick { 3 } else { options.rounds };
    println!("{rounds} rounds, best round of each figure\n");
    let (cold_bytes, warm_bytes) = (options.cold_mib << 20, options.warm_mib << 20);
    copies::run(rounds, cold_bytes, warm_bytes)?;
    let script = options.nixl_script.clone();
    let nixl = options.nixl_python.clone().map(|python| NixlAt { python, script });
    across::run(rounds, cold_bytes, warm_bytes, nixl.as_ref())?;
    tail::run(rounds)?;
    planning::run(rounds)
}
