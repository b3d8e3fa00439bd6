//! The session store: what a session costs in memory, how many are looked up, how exactly they end.

mod seam;

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sluice::sessions::SWEEP_INTERVAL;
use sluice_core::history::chain::Chain;
use sluice_core::history::lines::Lines;
use sluice_harness::budget::line;
use sluice_harness::process_tree::ProcessTree;
use sluice_harness::table::Table;
use sluice_policy_sdk::pick::mix;

use seam::{Keys, Store, scope};

/// Of a session's metadata, at most.
const BYTES_AT_MOST: f64 = 500.0;
/// Look-ups in a second by one core, at least, in millions.
const MILLIONS_AT_LEAST: f64 = 2.0;
/// Look-ups of a round: a good part of a second.
const LOOKED_UP: u64 = 1_000_000;
/// Rounds, of which the best counts.
const ROUNDS: usize = 5;
/// After which outgrown memory may be given back, and turns that end meanwhile.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);
const SETTLING_TURNS: u64 = 10_000;
/// Messages of a history by which a conversation is found.
const MESSAGES: u64 = 9;
/// For how long sessions of the expiry test last, in milliseconds, and within which they end.
const EXPIRY_TTL_MS: u64 = 60_000;
const EXPIRY_SPREAD_MS: u64 = 20_000;
/// How often it is looked for what expired, in milliseconds.
const EXPIRY_STEP_MS: u64 = 100;

/// All of it, with so many sessions.
pub fn run(sessions: u64) {
    let mut table = Table::new(&["sessions", "what", "measured"]);
    let mut budgets = Vec::new();
    let mut row = |what: &str, measured: String| {
        table.row([format!("{sessions}"), what.to_owned(), measured]);
    };
    let (store, keys) = (Store::new(sessions as usize, u64::MAX), Keys::new());
    let before = resident_bytes();
    let filled = took(|| (0..sessions).for_each(|number| store.end_turn(keys.key(number), number)));
    // The allocator gives tables that were outgrown back to the system after a while, when something is allocated.
    std::thread::sleep(SETTLES_WITHIN);
    (0..SETTLING_TURNS.min(sessions)).for_each(|number| store.end_turn(keys.key(number), sessions));
    let bytes = (resident_bytes() - before) / sessions as f64;
    row("bytes a session, resident", format!("{bytes:.0}"));
    row("turns that end, a core and second", millions(sessions, filled));
    budgets.push(line(
        "sessions.bytes",
        &format!("<= {BYTES_AT_MOST} B"),
        &format!("{bytes:.0} B"),
        bytes <= BYTES_AT_MOST,
    ));

    let asked: Vec<_> = (0..LOOKED_UP).map(|number| keys.key(mix(1, number) % sessions)).collect();
    let looked_up = best(|| {
        for key in &asked {
            assert!(black_box(store.get(key, sessions)).is_some(), "a session is not found");
        }
    });
    row("look-ups of named ones, a core and second", millions(LOOKED_UP, looked_up));
    let measured = LOOKED_UP as f64 / looked_up.as_secs_f64() / 1e6;
    let target = format!(">= {MILLIONS_AT_LEAST} M/s");
    budgets.push(line(
        "sessions.lookups",
        &target,
        &format!("{measured:.1} M/s"),
        measured >= MILLIONS_AT_LEAST,
    ));
    drop(asked);

    let swept = took(|| store.sweep(sessions));
    row("one sweep that drops nothing", format!("{:.0} ms", swept.as_secs_f64() * 1e3));
    drop(store);

    let (found, count) = derived(sessions / 5);
    row("histories of 9 messages found, a core and second", millions(count, found));

    let Expiry { late_ms, found_after } = expiry(&keys, sessions / 10);
    row("found after their time", found_after.to_string());
    row("memory back after the end, at the latest", format!("{late_ms} ms"));
    let target = format!("0 found after their time, memory back <= {} ms", SWEEP_INTERVAL.as_millis());
    let is_met = found_after == 0 && u128::from(late_ms) <= SWEEP_INTERVAL.as_millis();
    budgets.push(line("sessions.expiry", &target, &format!("{found_after}, {late_ms} ms"), is_met));

    println!("{table}");
    budgets.iter().for_each(|budget| println!("{budget}"));
    println!();
}

/// Finds derived conversations by their histories; how long it took, and how many were looked for.
fn derived(lines_at_most: u64) -> (Duration, u64) {
    let scope = scope();
    let chains: Vec<_> = (0..lines_at_most)
        .filter_map(|number| {
            let messages: Vec<_> = (0..MESSAGES)
                .map(|at| format!("{{\"role\":\"user\",\"content\":\"{number} says the {at}th thing\"}}"))
                .collect();
            Chain::of_messages(&scope, messages.iter().map(String::as_bytes)).ok()
        })
        .collect();
    let mut lines = Lines::new(lines_at_most as usize);
    for chain in &chains {
        lines.turn_ended(chain.end(), chain);
    }
    let took = best(|| {
        for number in 0..lines_at_most {
            let chain = &chains[(mix(2, number) % lines_at_most) as usize];
            assert!(black_box(lines.find(chain)).from.is_some(), "a history is not found");
        }
    });
    (took, lines_at_most)
}

struct Expiry {
    /// The longest that an expired session's memory was kept.
    late_ms: u64,
    /// Sessions found at the end of their time or later.
    found_after: usize,
}

/// Lets sessions end one after the other, in virtual time, with sweeps at the host's interval.
fn expiry(keys: &Keys, sessions: u64) -> Expiry {
    let store = Store::new(sessions as usize, EXPIRY_TTL_MS);
    let ended_at = |number: u64| number * EXPIRY_SPREAD_MS / sessions;
    let over_by = |now_ms: u64| {
        let since_ms = now_ms.saturating_sub(EXPIRY_TTL_MS);
        if now_ms < EXPIRY_TTL_MS {
            0
        } else {
            ((since_ms + 1) * sessions).div_ceil(EXPIRY_SPREAD_MS).min(sessions)
        }
    };
    (0..sessions).for_each(|number| store.end_turn(keys.key(number), ended_at(number)));
    let (mut late_ms, mut found_after, mut gone) = (0, 0, 0);
    let sweep_ms = SWEEP_INTERVAL.as_millis() as u64;
    // Not in step with the sessions' ends.
    let mut next_sweep_ms = EXPIRY_TTL_MS - 1;
    let end_ms = EXPIRY_TTL_MS + EXPIRY_SPREAD_MS + sweep_ms;
    for now_ms in (EXPIRY_TTL_MS - EXPIRY_STEP_MS..=end_ms).step_by(EXPIRY_STEP_MS as usize) {
        let over = over_by(now_ms);
        let newest_over = over.saturating_sub(100)..over;
        found_after += newest_over.filter(|number| store.get(&keys.key(*number), now_ms).is_some()).count();
        if now_ms >= next_sweep_ms {
            store.sweep(now_ms);
            next_sweep_ms += sweep_ms;
            let gone_now = sessions - store.len() as u64;
            if gone_now > gone {
                // The first of those that went had waited longest.
                late_ms = late_ms.max(now_ms - EXPIRY_TTL_MS - ended_at(gone));
            }
            gone = gone_now;
        }
    }
    // What is still there never came back.
    Expiry { late_ms: if store.len() == 0 { late_ms } else { u64::MAX }, found_after }
}

fn best(mut round: impl FnMut()) -> Duration {
    (0..ROUNDS).map(|_| took(&mut round)).min().unwrap_or_default()
}

/// What it takes of one core: others may have the machine's time meanwhile.
fn took(work: impl FnOnce()) -> Duration {
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    };
    let before = used();
    work();
    used().saturating_sub(before)
}

fn millions(count: u64, took: Duration) -> String {
    format!("{:.2} M", count as f64 / took.as_secs_f64() / 1e6)
}

fn resident_bytes() -> f64 {
    ProcessTree::of(std::process::id()).resident_bytes() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_when_their_time_is_over() {
        let Expiry { late_ms, found_after } = expiry(&Keys::new(), 1_000);
        assert_eq!(found_after, 0);
        assert!(u128::from(late_ms) <= SWEEP_INTERVAL.as_millis(), "{late_ms} ms late");
    }
}
