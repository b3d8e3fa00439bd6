//! Tables and budgets.

use sluice_harness::budget::{line, not_run};
use sluice_harness::table::Table;

use crate::cases::{CASES, CONCURRENCIES};
use crate::peer::{KINDS, Kind, Peer};
use crate::rounds::{Cell, Figures, Measured};
use crate::streams::{self, Cost};

/// A target that is a ratio of two routers' figures.
struct Ratio {
    budget: &'static str,
    case: &'static str,
    against: Kind,
    at_most: f64,
}

const RATIOS: [Ratio; 6] = [
    Ratio { budget: "router.plain2k", case: "plain2k", against: Kind::VllmRouter, at_most: 0.5 },
    Ratio { budget: "router.plain64k", case: "plain64k", against: Kind::VllmRouter, at_most: 0.35 },
    Ratio { budget: "router.pd2k", case: "pd2k", against: Kind::VllmRouter, at_most: 0.5 },
    Ratio { budget: "router.pd64k", case: "pd64k", against: Kind::VllmRouter, at_most: 0.4 },
    Ratio { budget: "router.stream", case: "stream", against: Kind::VllmRouter, at_most: 0.5 },
    Ratio { budget: "router.stream", case: "stream", against: Kind::Nginx, at_most: 2.5 },
];

/// Added latency with one client, against vllm-router's.
const ADDED_P50_AT_MOST: f64 = 0.6;

/// Idle memory of a host with all policies loaded, in bytes.
const IDLE_BYTES_AT_MOST: u64 = 50 * 1_000 * 1_000;

/// Prints the tables and the budget lines of all rounds.
pub fn print(measured: &Measured, peers: &[Peer]) {
    let cpu = |figures: Figures| format!("{:.3}", figures.cpu_ms);
    println!("\nCPU per request, ms\n{}", table(measured, |kind| kind != Kind::Direct, cpu));
    println!("p50, ms\n{}", table(measured, |_| true, |figures| format!("{:.3}", figures.p50_ms)));
    println!("p99, ms\n{}", table(measured, |_| true, |figures| format!("{:.3}", figures.p99_ms)));
    println!("answers per second\n{}", table(measured, |_| true, |figures| format!("{:.0}", figures.rate)));
    println!("{}", memory(peers));
    for ratio in &RATIOS {
        println!("{}", ratio_line(measured, ratio));
    }
    println!("{}", added_line(measured));
    println!("{}", idle_line(peers));
}

/// Routers down, cases across.
fn table(measured: &Measured, of: impl Fn(Kind) -> bool, figure: impl Fn(Figures) -> String) -> Table {
    let cells = || CASES.into_iter().flat_map(|case| CONCURRENCIES.map(|clients| (case.name, clients)));
    let heads: Vec<_> = cells().map(|(case, clients)| format!("{case} x{clients}")).collect();
    let mut table =
        Table::new(&std::iter::once("router").chain(heads.iter().map(String::as_str)).collect::<Vec<_>>());
    for kind in KINDS.into_iter().filter(|kind| of(*kind)) {
        let figures = cells().map(|(case, clients)| {
            measured.best(Cell { kind, case, clients }).map_or("-".to_owned(), &figure)
        });
        table.row(std::iter::once(kind.name().to_owned()).chain(figures));
    }
    table
}

fn memory(peers: &[Peer]) -> Table {
    let mut table = Table::new(&["router", "mode", "idle MB", "after MB", "peak MB"]);
    for peer in peers {
        let Some(tree) = peer.processes else { continue };
        let bytes = [peer.idle_bytes, tree.resident_bytes(), tree.peak_resident_bytes()];
        let row = [peer.kind.name().to_owned(), format!("{:?}", peer.mode).to_lowercase()];
        table.row(row.into_iter().chain(bytes.map(|bytes| format!("{:.1}", bytes as f64 / 1e6))));
    }
    table
}

/// The CPU ratio at each concurrency; the worst decides.
fn ratio_line(measured: &Measured, ratio: &Ratio) -> String {
    let cpu = |kind, clients| measured.best(Cell { kind, case: ratio.case, clients }).map(|f| f.cpu_ms);
    let measured: Option<Vec<f64>> = CONCURRENCIES
        .iter()
        .map(|clients| Some(cpu(Kind::Sluice, *clients)? / cpu(ratio.against, *clients)?))
        .collect();
    let target = format!("<= {}x {} CPU per request", ratio.at_most, ratio.against.name());
    let Some(ratios) = measured else { return not_run(ratio.budget, &target) };
    let shown: Vec<_> = ratios
        .iter()
        .zip(CONCURRENCIES)
        .map(|(ratio, clients)| format!("{ratio:.2}x at {clients}"))
        .collect();
    let is_met = ratios.iter().all(|measured| *measured <= ratio.at_most);
    line(ratio.budget, &target, &shown.join(" and "), is_met)
}

/// What a router adds to the engine's own p50, one client at a time.
fn added_line(measured: &Measured) -> String {
    let p50_ms = |kind| measured.best(Cell { kind, case: "plain2k", clients: 1 }).map(|f| f.p50_ms);
    let added_ms = |kind| Some(p50_ms(kind)? - p50_ms(Kind::Direct)?);
    let target = format!("<= {ADDED_P50_AT_MOST}x vllm-router");
    let Some((ours, theirs)) = added_ms(Kind::Sluice).zip(added_ms(Kind::VllmRouter)) else {
        return not_run("router.added_p50", &target);
    };
    let ratio = ours / theirs;
    let shown = format!("{ratio:.2}x ({:.0} us against {:.0} us)", ours * 1_000.0, theirs * 1_000.0);
    line("router.added_p50", &target, &shown, ratio <= ADDED_P50_AT_MOST)
}

fn idle_line(peers: &[Peer]) -> String {
    let target = format!("<= {} MB with 7 policies", IDLE_BYTES_AT_MOST / 1_000_000);
    let idle = peers.iter().filter(|peer| peer.kind == Kind::Sluice).map(|peer| peer.idle_bytes).max();
    let Some(bytes) = idle else { return not_run("router.rss_idle", &target) };
    line("router.rss_idle", &target, &format!("{:.1} MB", bytes as f64 / 1e6), bytes <= IDLE_BYTES_AT_MOST)
}

/// Prints what thousands of streams cost.
pub fn print_streams(cost: &Cost) {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let grown = cost.most_bytes.saturating_sub(cost.before_bytes);
    println!(
        "\n{} streams of {} chunks, one each {} ms: memory {:.1} MB before, {:.1} MB at most ({:.1} KB a stream), CPU {:.2} ms \
         a stream, p50 {:.0} ms and p99 {:.0} ms where the pace alone takes {:.0} ms",
        streams::STREAMS,
        crate::canned::CHUNKS,
        streams::PACE_MS,
        mb(cost.before_bytes),
        mb(cost.most_bytes),
        grown as f64 / 1e3 / streams::STREAMS as f64,
        cost.cpu_ms,
        cost.whole_ms[0],
        cost.whole_ms[1],
        streams::paced_ms(),
    );
    for fault in &cost.seen.faults {
        println!("failed: {fault}");
    }
    let lost = streams::STREAMS - cost.seen.times.len();
    println!("{}", line("router.streams_lost", "0 of 4096", &lost.to_string(), lost == 0));
}

/// Prints requests without a right answer; returns how many there were at this project's host.
pub fn print_failures(measured: &Measured) -> usize {
    for (cell, count, faults) in &measured.failed {
        let Cell { kind, case, clients } = cell;
        println!("failed: {count} of {} {case} x{clients}: {}", kind.name(), faults.join(" | "));
    }
    measured.failed.iter().filter(|(cell, ..)| cell.kind == Kind::Sluice).map(|(_, count, _)| count).sum()
}
