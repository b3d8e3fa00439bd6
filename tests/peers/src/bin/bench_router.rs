//! `bench-router`: what a request costs in front of the same engines, router by router.
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use sluice_harness::process::exit_code_of;
use sluice_peers::cases::{CASES, Case, Mode};
use sluice_peers::peer::{Engines, KINDS, Kind, Peer, sluice_binary};
use sluice_peers::rounds::{self, Plan};
use sluice_peers::{report, streams};

/// Compares routers in front of mock engines: nginx (a floor), vllm-router, and a Sluice host, and the engine itself.
///
/// All run side by side, in interleaved rounds; of each figure the best round counts, for every router alike. CPU is user
/// and system time of the router's processes per right answer. Every answer is checked. A peer that is not installed does
/// not run, and its budgets are missed.
#[derive(Debug, Parser)]
#[command(name = "bench-router")]
struct Options {
    /// Where tests/peers/setup.sh put the peers.
    #[arg(long, default_value = "target/peers")]
    peers: PathBuf,
    /// Rounds.
    #[arg(long, default_value_t = 4)]
    rounds: usize,
    /// One router's turn at one case, in milliseconds.
    #[arg(long, default_value_t = 1_500)]
    turn_ms: u64,
    /// Two short rounds and no paced streams, for trying.
    #[arg(long)]
    quick: bool,
    /// Only this router (direct, nginx, vllm-router or sluice), with --case, --clients and --seconds.
    #[arg(long)]
    only: Option<String>,
    /// With --only: plain2k, plain64k, stream, pd2k, pd64k, pdstream, or paced for 4,096 paced streams.
    #[arg(long, default_value = "plain2k")]
    case: String,
    /// With --only: clients at a time.
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// With --only: how long.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    sluice_peers::descriptors::raise_limit();
    exit_code_of(async { bench(&options).await.map(|failed| failed == 0) }).await
}

/// Returns how many requests the Sluice host failed.
async fn bench(options: &Options) -> anyhow::Result<usize> {
    let engines = Engines::start().await?;
    if let Some(name) = &options.only {
        return one(options, name, &engines).await;
    }
    let plan = if options.quick {
        Plan { rounds: 2, turn: Duration::from_millis(500) }
    } else {
        Plan { rounds: options.rounds, turn: Duration::from_millis(options.turn_ms) }
    };
    println!(
        "{} rounds of {} ms a case and router, best round of each figure; {}\nSluice decides plain requests by \
         round-robin and split ones by adaptive, 7 policies loaded; the others go round robin",
        plan.rounds,
        plan.turn.as_millis(),
        sluice_binary()?.display()
    );
    let mut peers = Vec::new();
    for mode in [Mode::Plain, Mode::Split] {
        for kind in KINDS.into_iter().filter(|kind| kind.serves(mode)) {
            match Peer::start(kind, mode, &engines, &options.peers).await {
                Ok(peer) => peers.push(peer),
                Err(error) if kind == Kind::Sluice => return Err(error),
                Err(error) => println!("{} does not run: {error:#}", kind.name()),
            }
        }
    }
    let measured = rounds::measure(&peers, plan).await;
    report::print(&measured, &peers);
    let mut failed = report::print_failures(&measured);
    if !options.quick {
        failed += paced(&peers, Kind::Sluice).await?;
    }
    Ok(failed)
}

/// Thousands of paced streams through a plain router.
async fn paced(peers: &[Peer], kind: Kind) -> anyhow::Result<usize> {
    let router = peers.iter().find(|peer| (peer.kind, peer.mode) == (kind, Mode::Plain));
    let router = router.and_then(|router| Some((router, router.processes?)));
    let (router, tree) = router.context("paced streams need a router")?;
    let cost = streams::measure(router, tree).await;
    report::print_streams(&cost);
    Ok(cost.seen.failed)
}

/// One router, one case.
async fn one(options: &Options, name: &str, engines: &Engines) -> anyhow::Result<usize> {
    let Some(kind) = KINDS.into_iter().find(|kind| kind.name() == name) else {
        bail!("no router is called {name:?}: {}", KINDS.map(Kind::name).join(", "));
    };
    let case = if options.case == "paced" { Case::named("stream") } else { Case::named(&options.case) };
    let Some(case) = case else {
        bail!("no case is called {:?}: {}, paced", options.case, CASES.map(|case| case.name).join(", "));
    };
    let peer = Peer::start(kind, case.mode, engines, &options.peers).await?;
    let pid = peer.processes.map_or("none".to_owned(), |tree| tree.root().to_string());
    println!("{name}, {}, {} clients, process {pid}, {}", options.case, options.clients, peer.address);
    if options.case == "paced" {
        return paced(&[peer], kind).await;
    }
    let lasting = Duration::from_secs(options.seconds);
    let (_, figures, seen) = rounds::turn(&peer, case, options.clients, lasting).await;
    if let Some(figures) = figures {
        println!(
            "{} requests, CPU {:.4} ms a request, p50 {:.3} ms, p99 {:.3} ms, {:.0}/s, {} failed",
            figures.requests, figures.cpu_ms, figures.p50_ms, figures.p99_ms, figures.rate, seen.failed
        );
    }
    for fault in &seen.faults {
        println!("failed: {fault}");
    }
    Ok(seen.failed)
}
