//! Conversations with branches, races, expiry, restarts and clocks that go wrong, simulated: kept turns are used once, in time, in
//! their scope, and only for prompts that begin with their tokens. What decides is [`sluice_core::kept`], which the server runs.
//!
//! A seed is a schedule. `SLUICE_SIM_SCHEDULES` says how many are played, `SLUICE_SIM_FIRST` from which on.

mod engines;
mod flaw;
mod host;
mod random;
mod talk;
mod world;

use flaw::{Broken, Flaw, Rule};
use world::{Seen, play};

/// Seeds of a usual run: some seconds.
const SCHEDULES: u64 = 100_000;

/// Seeds within which a flaw is found; each was within the first two thousand.
const FLAW_SCHEDULES: u64 = 20_000;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn play_all(seeds: std::ops::Range<u64>, flaw: Option<Flaw>) -> Result<Seen, Broken> {
    let mut seen = Seen::new();
    seeds.into_iter().try_for_each(|seed| play(seed, flaw, &mut seen))?;
    Ok(seen)
}

#[test]
fn held_kv_is_used_once_in_time_and_only_where_it_is_proven() {
    let first = from_env("SLUICE_SIM_FIRST").unwrap_or(0);
    let count = from_env("SLUICE_SIM_SCHEDULES").unwrap_or(SCHEDULES);
    let seen = play_all(first..first + count, None).unwrap_or_else(|broken| panic!("{broken}"));
    if count < SCHEDULES {
        // Fewer schedules prove nothing about what many reach.
        return;
    }
    for what in [
        "something was found",
        "a fork found something",
        "all was served",
        "a part was served",
        "what was held before a restart was served",
        "nothing-held",
        "expired",
        "less-than-a-block",
        "a race was lost",
        "expired before it was taken",
        "expired before it was sent",
        "lost before it was sent",
        "the engine was gone",
        "history edited",
        "an answer edited",
        "taken",
        "renewed",
        "released",
        "superseded",
        "gone on from",
        "crowded",
        "made room",
        "lost",
        "dropped",
        "uncertain",
        "restored",
        "expired meanwhile",
    ] {
        assert!(seen.get(what).is_some_and(|count| *count >= 100), "{what} was hardly reached: {seen:#?}");
    }
}

#[test]
fn a_schedule_is_the_same_whenever_it_is_played() {
    // Each has its own hash maps, which are in another order.
    let [one, other] = [(); 2].map(|()| play_all(0..2_000, None).unwrap_or_else(|broken| panic!("{broken}")));
    assert_eq!(one, other);
}

fn check_flaw(flaw: Flaw, rules: &[Rule]) {
    let broken = play_all(0..FLAW_SCHEDULES, Some(flaw)).expect_err("the flaw was not found");
    assert!(rules.contains(&broken.rule), "{broken}");
}

#[test]
fn a_turn_that_stays_when_it_is_taken_is_found_out() {
    check_flaw(Flaw::DoubleTake, &[Rule::UsedOnce]);
}

#[test]
fn a_turn_that_is_sent_late_is_found_out() {
    check_flaw(Flaw::NotAskedAgain, &[Rule::UsedInTime]);
}

#[test]
fn a_deadline_without_a_margin_is_found_out() {
    check_flaw(Flaw::NoMargin, &[Rule::UsedInTime]);
}

#[test]
fn keys_without_tenants_are_found_out() {
    check_flaw(Flaw::CrossTenant, &[Rule::ScopeKept]);
}

#[test]
fn branches_that_are_mixed_up_are_found_out() {
    check_flaw(Flaw::BranchMixUp, &[Rule::IsAPrefix]);
}

#[test]
fn another_turn_in_the_place_of_one_that_is_gone_is_found_out() {
    check_flaw(Flaw::TakesAnother, &[Rule::IsAPrefix]);
}

#[test]
fn a_lease_that_outlives_its_engines_time_is_found_out() {
    check_flaw(Flaw::LeaseTrusted, &[Rule::UsedInTime]);
}

#[test]
fn turns_from_data_that_may_be_old_are_found_out() {
    check_flaw(Flaw::OldDataTrusted, &[Rule::UsedOnce]);
}
