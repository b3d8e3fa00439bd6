//! Producers, consumers, their network and their memory, simulated: T1 to T6 after every step, on real bytes.
//!
//! A seed is a setting and a schedule. `SLUICE_SIM_SCHEDULES` says how many seeds are played, `SLUICE_SIM_FIRST` from which
//! on; `SLUICE_SIM_SEED` plays one, and prints what happened if something did not hold.

mod checks;
mod coverage;
mod doing;
mod engines;
mod flaw;
mod flight;
mod hardware;
mod job;
mod leases;
mod memory;
mod node;
mod pressure;
mod processes;
mod random;
mod running;
mod schedule;
mod settling;
mod stepping;
mod world;

use flaw::Flaw;
use running::{Weather, run_many, run_seed};

/// Seeds of a usual run: some seconds.
const SCHEDULES: u64 = 40_000;

/// Seeds within which a seeded bug is found; each was within the first few hundred.
const FLAW_SCHEDULES: u64 = 5_000;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn whatever_goes_wrong_what_must_hold_holds() {
    if let Some(seed) = from_env("SLUICE_SIM_SEED") {
        if let Err(failure) = run_seed(seed, Weather::Wild, None) {
            panic!("{}", failure.report(Weather::Wild));
        }
        return;
    }
    let (first, count) =
        (from_env("SLUICE_SIM_FIRST").unwrap_or(0), from_env("SLUICE_SIM_SCHEDULES").unwrap_or(SCHEDULES));
    match run_many(first, count, Weather::Wild, None) {
        // Fewer schedules prove nothing about what many reach.
        Ok(coverage) if count >= SCHEDULES => {
            let missing = coverage.missing();
            assert!(missing.is_empty(), "never reached: {missing:#?}\nof what was: {:#?}", coverage.0);
        }
        Ok(_) => {}
        Err(failure) => panic!("{}", failure.report(Weather::Wild)),
    }
}

#[test]
fn without_faults_every_transfer_is_completed() {
    if let Some(seed) = from_env("SLUICE_SIM_SEED") {
        if let Err(failure) = run_seed(seed, Weather::Calm, None) {
            panic!("{}", failure.report(Weather::Calm));
        }
        return;
    }
    if let Err(failure) = run_many(0, 2_000, Weather::Calm, None) {
        panic!("{}", failure.report(Weather::Calm));
    }
}

fn check_flaw(flaw: Flaw, rules: &[&str]) {
    let failure = run_many(0, FLAW_SCHEDULES, Weather::Wild, Some(flaw)).expect_err("the flaw was not found");
    assert!(rules.contains(&failure.violation.rule), "{}", failure.report(Weather::Wild));
    assert!(failure.steps.len() < failure.all_steps);
}

#[test]
fn blocks_that_are_freed_too_early_are_found_out() {
    check_flaw(Flaw::FreedTooEarly, &["T1"]);
}

#[test]
fn a_wrong_count_of_completions_is_found_out() {
    check_flaw(Flaw::CountWrong, &["T2"]);
}

#[test]
fn an_epoch_that_is_ignored_is_found_out() {
    check_flaw(Flaw::EpochIgnored, &["T1", "T2", "T4"]);
}

#[test]
fn a_deadline_that_ends_quarantine_is_found_out() {
    check_flaw(Flaw::DeadlineEndsQuarantine, &["T1"]);
}

#[test]
fn a_read_that_is_not_confirmed_is_found_out() {
    check_flaw(Flaw::ReadNotConfirmed, &["T2", "T6"]);
}

#[test]
fn cells_that_nobody_wanted_and_were_counted_are_found_out() {
    check_flaw(Flaw::AnyPartCounts, &["T1", "T2"]);
}
