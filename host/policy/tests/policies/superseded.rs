//! What becomes of versions that newer ones replaced.

use std::sync::Arc;

use sluice_core::verdict::Verdict;
use sluice_policy::{Fault, Hook, LIVE_GENERATIONS_MAX};

use crate::guest::{self, Bench};

/// Puts another version in force, made of the same file.
fn swap(bench: &Bench, number: usize) {
    bench.put("main.toml", format!("swap = {number}").as_bytes());
    let outcome = bench.host.reload();
    assert!(outcome.swapped, "swap {number}: {outcome:?}");
}

#[test]
fn superseded_versions_keep_no_instances() {
    // More than enough to run out of instances if each kept its own.
    const SWAPS: usize = 600;
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    let mut held = vec![bench.host.generation()];
    for number in 0..SWAPS {
        swap(&bench, number);
        held.push(bench.host.generation());
    }
    let now = held.pop().unwrap();
    let instances = |generation: &sluice_policy::Generation| generation.default_policy().unwrap().instances();
    assert!(held.iter().all(|old| instances(old) == 0));
    assert!(instances(&now) >= 2);
    assert_eq!(now.number, 1 + SWAPS as u64);
}

#[test]
fn late_hooks_of_a_superseded_version_are_answered_until_it_expires() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    let old = Arc::clone(bench.host.generation().default_policy().unwrap());
    let facts =
        sluice_core::testing::table(&[sluice_core::testing::prefill(), sluice_core::testing::decode()]);
    let late = || old.bind_decode(&facts, &guest::prefilled());
    for number in 1..LIVE_GENERATIONS_MAX {
        swap(&bench, number);
        assert_eq!(late(), Ok(None), "{number} swaps later");
        assert_eq!(old.instances(), 0, "none is kept");
    }
    bench.log.take();
    swap(&bench, LIVE_GENERATIONS_MAX);
    bench.log.take();
    assert_eq!(late(), Err(Fault::Expired { hook: Hook::BindDecode }));
    assert_eq!(bench.log.take(), ["fault main bind-decode expired"]);
    assert_eq!(old.faults()["expired"], 1);
}

#[test]
fn what_stays_in_force_never_expires() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0)), ("other.wasm", &guest::text(0))]);
    let other = Arc::clone(bench.host.generation().policy("other").unwrap());
    for number in 0..2 * LIVE_GENERATIONS_MAX {
        swap(&bench, number);
    }
    assert_eq!(other.route(&guest::facts(guest::seed::GOOD)), Ok(Verdict::UseDefault));
    assert!(other.instances() >= 2);
}
