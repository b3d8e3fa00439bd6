//! Numbers that are none, infinite, or far from what engines measure: towards policies there is no other kind of hostile
//! value, and answers hold no such numbers.

use std::fs;
use std::sync::Arc;

use sluice_core::facts::Facts;
use sluice_core::testing;
use sluice_core::verdict::Verdict;

use crate::guest;

const STRANGE: [f32; 10] = [
    f32::NAN,
    -f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    0.0,
    -0.0,
    f32::MIN_POSITIVE,
    1e-45,
    f32::MAX,
    f32::MIN,
];

/// Four of each role, with this number, or with this number in one row, as all that was ever measured.
fn measured(number: f32, all: bool) -> Facts {
    let pair = [testing::prefill(), testing::decode(), testing::unified()];
    let mut facts = testing::table(&[pair, pair, pair, pair].concat());
    let fleet = Arc::make_mut(&mut facts.fleet);
    for column in [
        &mut fleet.prefill_tokens_per_s,
        &mut fleet.decode_step_ms,
        &mut fleet.link_mb_per_s,
        &mut fleet.pull_overhead_ms,
        &mut fleet.push_overhead_ms,
        &mut fleet.failure_rate,
    ] {
        if all {
            column.fill(number);
        } else {
            column[3] = number;
        }
    }
    facts
}

#[test]
fn shipped_policies_answer_whatever_was_measured() {
    for name in ["hello-policy", "round-robin", "random", "least-loaded", "vllm-defaults", "adaptive"] {
        let bench = guest::bench(&[("main.wasm", &fs::read(guest::built("policies", name)).unwrap())]);
        let generation = bench.host.generation();
        let policy = generation.default_policy().unwrap();
        for (number, all) in STRANGE.into_iter().flat_map(|number| [(number, true), (number, false)]) {
            let answer = policy.route(&measured(number, all));
            assert!(matches!(answer, Ok(Verdict::Route(_))), "{name}, {number:?}: {answer:?}");
        }
    }
}

#[test]
fn numbers_that_are_none_have_the_same_bits_everywhere() {
    let bench = guest::bench(&[("main.wasm", &guest::bytes("nan-bits"))]);
    let generation = bench.host.generation();
    let policy = generation.default_policy().unwrap();
    let mut facts = testing::table(&[testing::unified(); 3]);
    let other_bits = f32::from_bits(0xffa1_2345);
    Arc::make_mut(&mut facts.fleet).failure_rate = vec![other_bits, f32::INFINITY, 1.0];
    let Ok(Verdict::Route(route)) = policy.route(&facts) else { panic!("a route") };
    let bits = route.reason.unwrap();
    assert_eq!(bits, ["7fc00000"; 6].join(" ") + " 7f800000 40000000");
}

#[test]
fn ten_thousand_workers() {
    for name in ["least-loaded", "vllm-defaults", "adaptive"] {
        let limits = sluice_policy::Limits { cpu_budget_ms: 5_000, ..guest::limits() };
        let bench =
            guest::bench_with(&[("main.wasm", &fs::read(guest::built("policies", name)).unwrap())], limits);
        let generation = bench.host.generation();
        let mut pairs = vec![testing::prefill(), testing::decode()];
        pairs.resize_with(10_000, testing::unified);
        let answer = generation.default_policy().unwrap().route(&testing::table(&pairs));
        assert!(matches!(answer, Ok(Verdict::Route(_))), "{name}: {answer:?}");
    }
}
