//! Calls while policies are swapped under them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sluice_core::facts::Facts;
use sluice_harness::artifacts;
use sluice_harness::budget::line;
use sluice_harness::quantiles::quantile_ms;
use sluice_harness::table::Table;
use sluice_policy::PolicyHost;

use crate::both::host_facts;
use crate::fleet;
use crate::load::open;

/// Between two calls of the caller, so that it does not measure its own hunger for the core it shares.
const BETWEEN_CALLS: Duration = Duration::from_micros(200);

/// What the caller saw.
#[derive(Default)]
struct Seen {
    times: Vec<Duration>,
    failed: usize,
    generations: usize,
}

/// Calls for a while with nothing going on, and for as long as `swaps` swaps take.
pub fn run(swaps: usize) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let wasm = artifacts::policy("adaptive")?;
    let file = folder.path().join("main.wasm");
    std::fs::write(&file, &wasm)?;
    let (host, _) = open(folder.path(), "main")?;
    let facts = host_facts(&fleet::facts(64, 0));

    let quiet = beside(&host, &facts, || {
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    })?;
    let swapped =
        beside(&host, &facts, || (0..swaps).try_for_each(|number| swap(&host, &file, &wasm, number)))?;

    let mut table = Table::new(&["", "calls", "p50 us", "p99.9 us", "slowest us", "failed"]);
    for (name, seen) in [("quiet", &quiet), ("swapping", &swapped)] {
        let at =
            |share| quantile_ms(&seen.times, share).map_or_else(String::new, |ms| format!("{:.1}", ms * 1e3));
        let count = seen.times.len();
        let cells =
            [name.to_owned(), count.to_string(), at(0.5), at(0.999), at(1.0), seen.failed.to_string()];
        table.row(cells);
    }
    println!("calls beside {swaps} swaps, {} generations seen\n{table}", swapped.generations);
    let failed = quiet.failed + swapped.failed;
    println!("{}", line("policy.swap_failures", "0 failed calls", &failed.to_string(), failed == 0));
    Ok(())
}

/// Another file of the same policy.
fn swap(host: &PolicyHost, file: &Path, wasm: &[u8], number: usize) -> anyhow::Result<()> {
    let mut marked = wasm.to_vec();
    let [low, high, ..] = number.to_le_bytes();
    marked.extend([0, 4, 1, b'n', low, high]);
    let next = file.with_extension("next");
    std::fs::write(&next, marked)?;
    std::fs::rename(&next, file)?;
    let outcome = host.reload();
    ensure!(outcome.swapped, "swap {number} did not come into force: {:?}", outcome.refused);
    Ok(())
}

/// Calls on a thread of its own until `work` is done.
fn beside(
    host: &PolicyHost,
    facts: &Facts,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Seen> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| call_until(&done, host, facts));
        let worked = work();
        done.store(true, Ordering::Relaxed);
        let seen = caller.join().ok().context("the calling thread panicked")?;
        worked.map(|()| seen)
    })
}

/// As a request does: the generation in force is taken, then asked.
fn call_until(done: &AtomicBool, host: &PolicyHost, facts: &Facts) -> Seen {
    let mut seen = Seen::default();
    let mut last = 0;
    while !done.load(Ordering::Relaxed) {
        let began = Instant::now();
        let generation = host.generation();
        let answered = generation.policy("main").is_some_and(|policy| policy.route(facts).is_ok());
        seen.times.push(began.elapsed());
        seen.failed += usize::from(!answered);
        seen.generations += usize::from(generation.number != last);
        last = generation.number;
        std::thread::sleep(BETWEEN_CALLS);
    }
    seen
}
