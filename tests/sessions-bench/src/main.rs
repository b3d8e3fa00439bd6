//! `bench-sessions`: what sessions cost and save.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use sluice_sessions_bench::{gaps, given_back, hold_ends, killed, plot, store};

/// The session store; leases from turn gaps beside fixed times; KV that decode gives back to prefill, beside what was
/// measured on real engines; what a turn finds around the end of its hold; what is left of sessions when their host is killed.
#[derive(Debug, Parser)]
#[command(name = "bench-sessions")]
struct Options {
    /// Where charts are written to, as SVG.
    #[arg(long, default_value = "target/bench-sessions")]
    out: PathBuf,
    /// Less of everything, for trying.
    #[arg(long)]
    quick: bool,
    /// Only this section.
    #[arg(long, value_enum)]
    only: Option<Section>,
    /// Of the drawn conversations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Section {
    /// The store.
    Store,
    /// Leases from turn gaps, beside fixed times.
    Gaps,
    /// Second turns with and without the KV of the first.
    GivenBack,
    /// Second turns around the end of a hold.
    HoldEnds,
    /// Hosts that are killed among their requests.
    Killed,
}

/// As in the host, whose memory is measured.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    std::fs::create_dir_all(&options.out).with_context(|| format!("make {}", options.out.display()))?;
    let is_wanted = |section| options.only.is_none_or(|only| only == section);
    if is_wanted(Section::Store) {
        store::run(if options.quick { 100_000 } else { 1_000_000 });
    }
    if is_wanted(Section::Gaps) {
        let charts = gaps::run(if options.quick { 300 } else { 2_000 }, options.seed)?;
        write(options, "gaps.svg", &charts)?;
    }
    let runtime = tokio::runtime::Runtime::new()?;
    if is_wanted(Section::GivenBack) {
        let conversations = if options.quick { 1 } else { 2 };
        let charts = runtime.block_on(given_back::run(conversations, options.quick))?;
        write(options, "second-turns.svg", &charts)?;
    }
    if is_wanted(Section::HoldEnds) {
        runtime.block_on(hold_ends::run(if options.quick { 2 } else { 10 }))?;
    }
    if is_wanted(Section::Killed) {
        runtime.block_on(killed::run(if options.quick { 2 } else { 8 }))?;
    }
    Ok(())
}

fn write(options: &Options, name: &str, charts: &[plot::Chart]) -> anyhow::Result<()> {
    let path = options.out.join(name);
    std::fs::write(&path, plot::page(charts)).with_context(|| format!("write {}", path.display()))?;
    println!("{}\n", path.display());
    Ok(())
}
