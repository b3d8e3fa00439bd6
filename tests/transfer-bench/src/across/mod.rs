//! Between processes: two engines and their host, beside NIXL between two processes of its own.

mod engine;
mod engines;
mod nixl;
mod sequence;
mod speaker;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use sluice_engine_sdk::wire::Verb;
use sluice_harness::budget::{line, not_run};
use sluice_harness::table::Table;

use crate::copies::THREADS;
use crate::rounds::{Case, Time, measure};
pub use engine::run as run_engine;
use engines::Engines;
use nixl::{Nixl, Progress};
use sequence::{BLOCK_BYTES, Sequence};

/// Runs that a cold transfer consists of.
const RUN_BYTES: [u64; 3] = [BLOCK_BYTES, 1 << 20, 16 << 20];
/// Warm transfers of a turn.
const WARM_REPEATS: u32 = 100;
const BUDGETS: [&str; 2] = ["transfer.shm (NIXL, cold)", "transfer.shm (NIXL, warm)"];
const TARGET: &str = ">= 1x NIXL";

/// Where NIXL is.
pub struct NixlAt {
    /// A Python that has it.
    pub python: PathBuf,
    /// Its side of this bench.
    pub script: PathBuf,
}

/// Something that moves a sequence from one process to another.
trait Mover {
    /// For people.
    fn title(&self) -> String;
    /// Some transfers, one after the other: the mean of their times.
    fn turn(&mut self, verb: Verb, sequence: Sequence, repeats: u32) -> anyhow::Result<Duration>;
    /// That such a transfer brings all bytes.
    fn check(&mut self, verb: Verb, sequence: Sequence) -> anyhow::Result<()>;
}

/// All who take part, ours first.
type Movers = Vec<RefCell<Box<dyn Mover>>>;

/// Prints tables and budgets.
pub fn run(rounds: usize, cold_bytes: u64, warm_bytes: u64, nixl: Option<&NixlAt>) -> anyhow::Result<()> {
    let movers = start(cold_bytes, nixl)?;
    println!("between processes, from asking for it until the side that wants it knows that it has all");
    let mut cold = Vec::new();
    for run_bytes in RUN_BYTES.into_iter().filter(|run_bytes| *run_bytes <= cold_bytes) {
        let sequence = Sequence { bytes: cold_bytes / run_bytes * run_bytes, run_bytes };
        let title = format!("cold, {} MiB in runs of {} KiB", sequence.bytes >> 20, run_bytes >> 10);
        cold.extend(compare(&title, &movers, sequence, rounds, 1)?);
    }
    let title = format!("warm, {} MiB in runs of {} KiB", warm_bytes >> 20, BLOCK_BYTES >> 10);
    let sequence = Sequence { bytes: warm_bytes, run_bytes: BLOCK_BYTES };
    let warm = compare(&title, &movers, sequence, rounds, WARM_REPEATS)?;
    for (budget, ratios) in BUDGETS.into_iter().zip([cold, warm]) {
        if nixl.is_none() {
            println!("{}", not_run(budget, TARGET));
            continue;
        }
        let worst = ratios.into_iter().fold(Ratios::default(), Ratios::worse);
        let measured = format!(
            "{:.2}x best round, {:.2}x median (one copy thread, the faster NIXL, worst of its tables)",
            worst.best, worst.median
        );
        println!("{}", line(budget, TARGET, &measured, worst.best >= 1.0 && worst.median >= 1.0));
    }
    println!();
    Ok(())
}

fn start(bytes: u64, nixl: Option<&NixlAt>) -> anyhow::Result<Movers> {
    let mut movers: Movers = Vec::new();
    for threads in THREADS {
        movers.push(RefCell::new(Box::new(Engines::start(bytes, threads)?)));
    }
    if let Some(at) = nixl {
        for progress in [Progress::Thread, Progress::Polled] {
            movers.push(RefCell::new(Box::new(Nixl::start(at, bytes, progress)?)));
        }
    }
    Ok(movers)
}

/// Both verbs, everybody in every round; for each verb, how our one copy thread compares with the faster NIXL.
fn compare(
    title: &str,
    movers: &Movers,
    sequence: Sequence,
    rounds: usize,
    repeats: u32,
) -> anyhow::Result<Vec<Ratios>> {
    let verbs = [Verb::Write, Verb::Read];
    let everybody = || verbs.into_iter().flat_map(|verb| movers.iter().map(move |mover| (verb, mover)));
    let check_all = || everybody().try_for_each(|(verb, mover)| mover.borrow_mut().check(verb, sequence));
    check_all()?;
    let cases = everybody().map(|(verb, mover)| {
        let name =
            format!("{}, {}", if verb == Verb::Write { "write" } else { "read" }, mover.borrow().title());
        Case::told(name, sequence.bytes, move || mover.borrow_mut().turn(verb, sequence, repeats))
    });
    let times = measure(cases.collect(), rounds)?;
    check_all()?;

    let mut table = Table::new(&["", "GB/s", "median GB/s", "of NIXL", "of its median"]);
    let mut ratios = Vec::new();
    for of_verb in times.chunks(movers.len()) {
        let nixl = of_verb.get(THREADS.len()..).unwrap_or_default();
        let of_nixl: Vec<_> = of_verb.iter().map(|time| Ratios::new(time, nixl)).collect();
        for (time, of_nixl) in of_verb.iter().zip(&of_nixl) {
            let figures = [time.gb_per_s(), time.median_gb_per_s()].map(|figure| format!("{figure:.2}"));
            let ratios = of_nixl
                .map_or(Default::default(), |of| [of.best, of.median].map(|ratio| format!("{ratio:.2}x")));
            table.row([time.name.clone()].into_iter().chain(figures).chain(ratios));
        }
        ratios.extend(of_nixl.first().copied().flatten());
    }
    println!("{title}\n{table}");
    Ok(ratios)
}

/// How many times as fast as the faster NIXL.
#[derive(Debug, Clone, Copy)]
struct Ratios {
    best: f64,
    median: f64,
}

impl Ratios {
    /// Nothing without NIXL.
    fn new(time: &Time, nixl: &[Time]) -> Option<Self> {
        let fastest = |speed: fn(&Time) -> f64| nixl.iter().map(speed).reduce(f64::max);
        let best = time.gb_per_s() / fastest(Time::gb_per_s)?;
        Some(Self { best, median: time.median_gb_per_s() / fastest(Time::median_gb_per_s)? })
    }

    fn worse(self, other: Self) -> Self {
        Self { best: self.best.min(other.best), median: self.median.min(other.median) }
    }
}

impl Default for Ratios {
    fn default() -> Self {
        Self { best: f64::MAX, median: f64::MAX }
    }
}
