//! Policies that no Rust was needed for: they load, and decide.

use std::fs;

use sluice_core::facts::Facts;
use sluice_core::testing;
use sluice_core::verdict::{DecodeChoice, Placement, Verdict};
use sluice_policy::{Limits, Policy};

use crate::guest;

/// What a policy needs whose language brings an interpreter: time. The usual memory is enough.
fn interpreted() -> Limits {
    Limits { cpu_budget_ms: 5_000, ..guest::limits() }
}

/// Who serves: the prefill and the decode worker, or one worker for both.
fn rows(policy: &Policy, facts: &Facts) -> (u32, Option<u32>) {
    let Verdict::Route(route) = policy.route(facts).unwrap() else { panic!("a route") };
    assert_eq!(route.reason.as_deref(), Some("fewest requests"));
    match route.placement {
        Placement::Unified(row) => (row, None),
        Placement::Disaggregated(pair) => match pair.decode {
            DecodeChoice::Now(decode) => (pair.prefill, Some(decode)),
            DecodeChoice::AfterPrefill => panic!("{pair:?}"),
        },
    }
}

/// Both guests decide by the same rule.
fn takes_the_worker_with_fewest_requests(wasm: &[u8], limits: Limits) {
    let bench = guest::bench_with(&[("main.wasm", wasm)], limits);
    let generation = bench.host.generation();
    let policy = generation.default_policy().unwrap_or_else(|| panic!("{:?}", bench.host.status()));
    assert!(!policy.version().is_empty() && policy.description().about.contains("fewest requests"));
    for idle in 0..4 {
        let mut facts = testing::table(&[testing::unified(); 4]);
        facts.load.running = (0..4).map(|row| if row == idle { 1 } else { 30 }).collect();
        assert_eq!(rows(policy, &facts), (idle, None));
    }
    let mut pairs =
        testing::table(&[testing::prefill(), testing::decode(), testing::prefill(), testing::decode()]);
    pairs.load.running = vec![5, 2, 0, 3];
    pairs.load.waiting = vec![0, 2, 4, 0];
    assert_eq!(rows(policy, &pairs), (2, Some(3)), "waiting requests count too");
    assert_eq!(policy.route(&testing::table(&[])), Ok(Verdict::UseDefault));
    // More than it has memory for at first.
    let many = testing::table(&[testing::unified(); 4_000]);
    assert_eq!(rows(policy, &many), (0, None));
    assert_eq!(policy.bind_decode(&pairs, &guest::prefilled()), Ok(None));
    for hook in [sluice_policy::Hook::Retain, sluice_policy::Hook::Heartbeat] {
        assert_eq!(guest::ask(policy, hook, "good"), Ok(()));
    }
    assert!(policy.faults().is_empty(), "{:?}", policy.faults());
}

#[test]
fn text_form() {
    takes_the_worker_with_fewest_requests(&guest::bytes("fewest_requests"), guest::limits());
}

#[test]
fn javascript() {
    let wasm = fs::read(guest::built("guests", "javascript")).unwrap();
    takes_the_worker_with_fewest_requests(&wasm, interpreted());
}

#[test]
fn javascript_passes_its_trial_within_the_usual_limits() {
    let wasm = fs::read(guest::built("guests", "javascript")).unwrap();
    let bench = guest::bench(&[("main.wasm", &wasm)]);
    assert!(bench.host.generation().default_policy().is_some(), "{:?}", bench.host.status());
}

#[test]
fn settings_are_refused_in_the_guests_words() {
    for (name, wasm, limits) in [
        ("text", guest::bytes("fewest_requests"), guest::limits()),
        ("javascript", fs::read(guest::built("guests", "javascript")).unwrap(), interpreted()),
    ] {
        let bench = guest::bench_with(&[("main.wasm", &wasm), ("main.toml", b"mood = 'dark'")], limits);
        let refusal = bench.host.status().remove(0).refusal.unwrap_or_else(|| panic!("{name} takes them"));
        assert!(
            refusal.message.contains("main.toml: ") && refusal.message.contains("settings"),
            "{refusal:?}"
        );
    }
}
