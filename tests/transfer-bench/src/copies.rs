//! Bytes per second: the fabric beside `memcpy`, scattered blocks beside contiguous ones.

use sluice_harness::budget::line;
use sluice_harness::table::Table;
use sluice_transfer::layout::ByteCopy;
use sluice_transfer::memory::Stores;

use crate::blocks;
use crate::rounds::{Case, Time, measure};
use crate::sides::{Sides, Way};

/// What the host starts by default, and what one thread is compared with.
pub const THREADS: [usize; 2] = [1, 2];
/// Runs that a contiguous transfer consists of.
const RUN_BYTES: [u64; 3] = [256 << 10, 1 << 20, 16 << 20];
/// Sizes at which both ways to store are compared.
const STORES_MIB: [u64; 7] = [1, 4, 8, 16, 32, 64, 128];

/// Prints tables and budgets.
pub fn run(rounds: usize, cold_bytes: u64, warm_bytes: u64) -> anyhow::Result<()> {
    let sides = Sides::new(cold_bytes)?;
    println!("slabs of {} MiB, pages {:?}", cold_bytes >> 20, sides.source.pages());
    stores(&sides, rounds)?;
    let mut worst = f64::MAX;
    for run_bytes in RUN_BYTES {
        let copies = runs(cold_bytes, run_bytes);
        let times = beside(&sides, &copies, rounds, 1)?;
        show(&format!("cold, runs of {} KiB", run_bytes >> 10), &times);
        worst = worst.min(ratio(&times[1], &times[0]));
    }
    let copies = runs(warm_bytes, (256 << 10).min(warm_bytes));
    let times = beside(&sides, &copies, rounds, 200)?;
    show(&format!("warm, {} MiB in runs of 256 KiB", warm_bytes >> 20), &times);
    let scattered = blocks::run(&sides, rounds, cold_bytes)?;
    let shm = format!("{worst:.2}x (one copy thread, cold, worst of its run lengths)");
    println!("{}", line("transfer.shm", ">= 0.9x memcpy on one thread", &shm, worst >= 0.9));
    let measured = format!("{scattered:.2}x (one copy thread, cold, planning included)");
    println!("{}\n", line("transfer.scattered", ">= 0.8x contiguous", &measured, scattered >= 0.8));
    Ok(())
}

/// Where copying past the caches begins to pay: the same bytes again and again, which is the best case for caches.
fn stores(sides: &Sides, rounds: usize) -> anyhow::Result<()> {
    let mut table = Table::new(&["same bytes again", "cached GB/s", "streamed GB/s", "streamed / cached"]);
    for mib in STORES_MIB.into_iter().filter(|mib| mib << 20 <= sides.source.bytes()) {
        let bytes = mib << 20;
        let copies = runs(bytes, 256 << 10);
        let repeats = (64 / mib).max(1) as u32;
        let case = |name, stores| {
            let copies = &copies;
            Case::new(name, bytes, repeats, move || sides.copy(copies, stores))
        };
        let times =
            measure(vec![case("cached", Stores::CACHED), case("streamed", Stores::streaming())], rounds)?;
        table.row([
            format!("{mib} MiB"),
            format!("{:.2}", times[0].gb_per_s()),
            format!("{:.2}", times[1].gb_per_s()),
            format!("{:.2}x", ratio(&times[1], &times[0])),
        ]);
    }
    println!("one thread, runs of 256 KiB\n{table}");
    Ok(())
}

/// All of the memory in runs of one length, out of order on both sides.
fn runs(bytes: u64, run_bytes: u64) -> Vec<ByteCopy> {
    let count = bytes / run_bytes;
    let source = shuffled(count, 1);
    let sink = shuffled(count, 2);
    let place = |number: u64| number * run_bytes;
    source
        .into_iter()
        .zip(sink)
        .map(|(from, to)| ByteCopy { source_offset: place(from), sink_offset: place(to), len: run_bytes })
        .collect()
}

/// The numbers below `count` in an order that is always the same.
pub fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    let mix = |number: u64| {
        let mixed = (number ^ seed << 40).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    numbers.sort_unstable_by_key(|number| mix(*number));
    numbers
}

fn beside(sides: &Sides, copies: &[ByteCopy], rounds: usize, repeats: u32) -> anyhow::Result<Vec<Time>> {
    let bytes = copies.iter().map(|copy| copy.len).sum();
    let mut ways = THREADS.map(|threads| (threads, Way::new(sides, threads)));
    let mut cases =
        vec![Case::new("memcpy, 1 thread", bytes, repeats, || sides.copy(copies, Stores::CACHED))];
    for (threads, way) in &mut ways {
        let way = way.as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
        sides.wipe(copies)?;
        way.send(copies.iter().copied())?;
        sides.check(copies)?;
        let name = format!("shm, {}", threads_of(*threads));
        cases.push(Case::new(name, bytes, repeats, move || way.send(copies.iter().copied())));
    }
    measure(cases, rounds)
}

/// How many times as fast.
pub fn ratio(one: &Time, other: &Time) -> f64 {
    one.gb_per_s() / other.gb_per_s()
}

/// One table.
pub fn show(title: &str, times: &[Time]) {
    let mut table = Table::new(&["", "GB/s", "median GB/s", "of the first"]);
    for time in times {
        let of_first = times.first().map_or(1.0, |first| ratio(time, first));
        table.row([
            time.name.clone(),
            format!("{:.2}", time.gb_per_s()),
            format!("{:.2}", time.median_gb_per_s()),
            format!("{of_first:.2}x"),
        ]);
    }
    println!("{title}\n{table}");
}

/// A number of threads, for people.
pub fn threads_of(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}
