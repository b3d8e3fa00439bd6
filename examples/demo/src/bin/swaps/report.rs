//! The figures.

use std::time::Duration;

use sluice_harness::budget::{line, not_run};
use sluice_harness::quantiles::quantile_ms;
use sluice_harness::table::Table;

use crate::Seen;
use crate::load::Stage;
use crate::memory::Memory;

/// Time from a file's dropping to its first decision, p99.
const DROP_TO_LIVE_TARGET_MS: f64 = 250.0;

/// p99.9 of requests in windows with swaps over that in windows without.
const TAIL_RATIO_AT_MOST: f64 = 1.2;

/// By how much resident memory may rise over all swaps after the warm-up: what an allocator keeps. A compiled policy
/// and its instances take more than 100 kB, so a thousand that stay are 100 MB.
const RISE_BYTES_AT_MOST: f64 = 16e6;

/// Failures shown in full.
const FAILURES_SHOWN: usize = 5;

/// Prints the figures; says whether all budgets are met.
pub fn print(seen: &Seen) -> bool {
    let times = |stage| -> Vec<Duration> {
        let of_stage = seen.asked.iter().filter(|asked| asked.stage == stage);
        of_stage.filter_map(|asked| asked.end.as_ref().ok().copied()).collect()
    };
    let (quiet, swapping) = (times(Stage::Quiet), times(Stage::Swapping));
    let mut table = Table::new(&["what", "count", "p50 ms", "p99 ms", "p99.9 ms", "max ms"]);
    for (what, times) in [
        ("requests without swaps", &quiet),
        ("requests beside swaps", &swapping),
        ("requests in the warm-up", &times(Stage::WarmUp)),
        ("drop to live", &seen.live_after),
    ] {
        let ms = |share| quantile_ms(times, share).map_or("-".to_owned(), |ms| format!("{ms:.1}"));
        table.row([what.to_owned(), times.len().to_string(), ms(0.5), ms(0.99), ms(0.999), ms(1.0)]);
    }
    println!("\n{table}");
    let failures: Vec<_> = seen.asked.iter().filter_map(|asked| asked.end.as_ref().err()).collect();
    for why in failures.iter().take(FAILURES_SHOWN) {
        println!("failed: {why}");
    }
    let [first, last] = &seen.memory;
    println!("warm:   {first}\nat end: {last}");
    let measured = format!("{} of {} over {} swaps", failures.len(), seen.asked.len(), seen.live_after.len());
    let lines = [
        (
            line("policy.swap_failures", "0 failed requests", &measured, failures.is_empty()),
            failures.is_empty(),
        ),
        tail(&quiet, &swapping),
        memory(first, last),
        drop_to_live(&seen.live_after),
    ];
    lines.iter().for_each(|(line, _)| println!("{line}"));
    lines.iter().all(|(_, is_met)| *is_met)
}

fn tail(quiet: &[Duration], swapping: &[Duration]) -> (String, bool) {
    let target = format!("<= {TAIL_RATIO_AT_MOST}");
    let Some((with, without)) = quantile_ms(swapping, 0.999).zip(quantile_ms(quiet, 0.999)) else {
        return (not_run("policy.swap_tail", &target), false);
    };
    let ratio = with / without;
    let is_met = ratio <= TAIL_RATIO_AT_MOST;
    (
        line("policy.swap_tail", &target, &format!("{ratio:.2} ({with:.1} ms / {without:.1} ms)"), is_met),
        is_met,
    )
}

fn memory(first: &Memory, last: &Memory) -> (String, bool) {
    let target = format!("<= {:.0} MB rise, no more code or instances", RISE_BYTES_AT_MOST / 1e6);
    let rise = last.bytes as f64 - first.bytes as f64;
    // No code at all would be a count that does not count.
    let none_left = (1..=first.code_pieces).contains(&last.code_pieces) && last.instances <= first.instances;
    let is_met = rise <= RISE_BYTES_AT_MOST && none_left;
    let measured = format!(
        "{:+.1} MB, {:+} pieces of code, {:+} instances",
        rise / 1e6,
        last.code_pieces as f64 - first.code_pieces as f64,
        last.instances as f64 - first.instances as f64
    );
    (line("policy.swap_memory", &target, &measured, is_met), is_met)
}

fn drop_to_live(live_after: &[Duration]) -> (String, bool) {
    let target = format!("{DROP_TO_LIVE_TARGET_MS:.0} ms p99");
    let Some(ms) = quantile_ms(live_after, 0.99) else {
        return (not_run("policy.drop_to_live", &target), false);
    };
    let is_met = ms <= DROP_TO_LIVE_TARGET_MS;
    (line("policy.drop_to_live", &target, &format!("{ms:.1} ms"), is_met), is_met)
}
