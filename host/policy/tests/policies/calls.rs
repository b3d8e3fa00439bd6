//! A policy that passed its trial and misbehaves later: each fault has its own name, and the next call is well.

use std::sync::Arc;

use sluice_core::verdict::{Placement, Renewal, Retention, Verdict};
use sluice_core::{facts, testing};
use sluice_policy::{Fault, Hook, Limits, Policy};

use crate::guest::{self, Bench, seed};

fn policy(bench: &Bench) -> Arc<Policy> {
    Arc::clone(bench.host.generation().default_policy().expect("the good guest is loaded"))
}

fn route(policy: &Policy, seed: u64) -> Result<Verdict, Fault> {
    policy.route(&guest::facts(seed))
}

#[test]
fn each_fault_has_its_name_and_the_next_call_is_well() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    let policy = policy(&bench);
    bench.log.take();
    for (seed, kind) in [
        (seed::TRAP, "trap"),
        (seed::ENDLESS, "cpu-deadline"),
        (seed::MEMORY, "memory"),
        (seed::STACK, "stack"),
        (seed::NO_SUCH_CASE, "bad-answer"),
        (seed::NO_SUCH_ROW, "bad-row"),
        (seed::LONG_TEXT, "bad-answer"),
        (seed::TABLE, "table"),
    ] {
        let fault = route(&policy, seed).expect_err(kind);
        assert_eq!(fault.kind(), kind, "{fault}");
        assert_eq!(bench.log.take()[0], format!("fault main route {kind}"));
        assert_eq!(route(&policy, seed::GOOD), Ok(Verdict::UseDefault), "after {kind}");
    }
    assert_eq!(policy.faults()["bad-answer"], 2);
    assert_eq!(policy.calls(), 16);
}

/// Each answer may be as long as the limit says, however much an instance answered before.
#[test]
fn the_limit_of_an_answers_texts_is_each_calls_own() {
    let route = "(if (i64.eqz (local.get $seed)) (then
        (call $unified (i32.const 0))
        (i32.store8 (i32.const 1052) (i32.const 1))
        (i32.store (i32.const 1056) (i32.const 8192))
        (i32.store (i32.const 1060) (i32.const 256))))";
    let file = guest::build(&guest::Text { route, ..guest::Text::default() }, "0.1.0");
    let limits = Limits { text_bytes: 300, recheck_one_in: 0, ..guest::limits() };
    let policy = policy(&guest::bench_with(&[("main.wasm", &file)], limits));
    for call in 0..20 {
        assert!(reason(&policy).is_some_and(|reason| reason.len() == 256), "call {call}");
    }
}

fn reason(policy: &Policy) -> Option<String> {
    match route(policy, seed::GOOD) {
        Ok(Verdict::Route(route)) => route.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn more_faults_than_there_are_instances() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    let policy = policy(&bench);
    for _ in 0..200 {
        assert_eq!(route(&policy, seed::TRAP).expect_err("traps").kind(), "trap");
    }
    assert_eq!(route(&policy, seed::GOOD), Ok(Verdict::UseDefault));
}

#[test]
fn the_wall_bound_stands_behind_the_cpu_budget() {
    let limits = Limits { cpu_budget_ms: 60_000, wall_bound_ms: 500, ..guest::limits() };
    let bench = guest::bench_with(&[("main.wasm", &guest::text(0))], limits);
    let policy = policy(&bench);
    assert_eq!(route(&policy, seed::ENDLESS).expect_err("endless").kind(), "wall-deadline");
}

#[test]
fn state_kept_between_calls_is_found_out() {
    let limits = Limits { recheck_one_in: 1, ..guest::limits() };
    let bench = guest::bench_with(&[("main.wasm", &guest::text(0))], limits);
    let policy = policy(&bench);
    assert_eq!(route(&policy, seed::GOOD), Ok(Verdict::UseDefault));
    let kinds: Vec<_> = (0..4)
        .map(|_| route(&policy, seed::COUNTS_CALLS).map_or_else(|fault| fault.kind(), |_| "good"))
        .collect();
    // Each that was found out is gone, with all that may have kept something: the next call is a first one.
    assert_eq!(kinds, ["good", "impure", "good", "impure"]);
    assert_eq!(policy.instances(), 0);
}

/// What no trial lasts for is found out by the second runs.
#[test]
fn state_that_shows_late_is_found_out() {
    let file = std::fs::read(guest::built("guests", "impure-thousandth")).unwrap();
    let limits = Limits { recheck_one_in: 16, cpu_budget_ms: 1_000, ..guest::limits() };
    let bench = guest::bench_with(&[("main.wasm", &file)], limits);
    let policy = policy(&bench);
    let found = (0..20_000).find_map(|seed| route(&policy, seed).err());
    let fault = found.expect("found out");
    assert_eq!((fault.kind(), fault.hook()), ("impure", Hook::Route), "{fault}");
}

#[test]
fn rechecks_do_not_pile_up_instances() {
    let limits = Limits { recheck_one_in: 1, ..guest::limits() };
    let bench = guest::bench_with(&[("main.wasm", &guest::text(0))], limits);
    let policy = policy(&bench);
    let ready = policy.instances();
    for _ in 0..40 {
        assert_eq!(route(&policy, seed::GOOD), Ok(Verdict::UseDefault));
    }
    assert_eq!(policy.instances(), ready);
}

/// Long enough to outlast `SHORT_BOUND_MS` on any machine, short enough for its setup budget.
const LONG_CONFIGURE: &str = "(local $left i32) (local.set $left (i32.const 400000000))
    (loop $again
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $again (local.get $left)))";
const SHORT_BOUND_MS: u32 = 50;

#[test]
fn an_instance_made_for_a_call_is_made_in_the_calls_own_time() {
    let limits = Limits {
        // The bound by the clock is what ends it; CPU time is left out of the picture.
        cpu_budget_ms: 60_000,
        wall_bound_ms: SHORT_BOUND_MS,
        configure_cpu_budget_ms: 60_000,
        configure_wall_bound_ms: 60_000,
        recheck_one_in: 0,
        ..guest::limits()
    };
    let text = guest::Text { configure: LONG_CONFIGURE, ..guest::Text::default() };
    let bench = guest::bench_with(&[("main.wasm", &guest::build(&text, "0.1.0"))], limits);
    let policy = policy(&bench);
    assert_eq!(route(&policy, seed::GOOD), Ok(Verdict::UseDefault), "a warm instance is configured already");
    while policy.instances() > 0 {
        assert_eq!(route(&policy, seed::TRAP).expect_err("traps").kind(), "trap");
    }
    let fault = route(&policy, seed::GOOD).expect_err("there is no time to configure another");
    assert_eq!(fault, Fault::WallDeadline { hook: Hook::Configure, bound_ms: SHORT_BOUND_MS.into() });
}

#[test]
fn a_recheck_that_does_not_fit_is_no_fault() {
    let limits = Limits {
        cpu_budget_ms: 60_000,
        wall_bound_ms: SHORT_BOUND_MS,
        configure_cpu_budget_ms: 60_000,
        configure_wall_bound_ms: 60_000,
        recheck_one_in: 1,
        ..guest::limits()
    };
    let text = guest::Text { configure: LONG_CONFIGURE, ..guest::Text::default() };
    let bench = guest::bench_with(&[("main.wasm", &guest::build(&text, "0.1.0"))], limits);
    let policy = policy(&bench);
    // With the time for a second run, the second of these would be found out.
    let ready = policy.instances();
    for _ in 0..3 {
        assert!(route(&policy, seed::COUNTS_CALLS).is_ok());
    }
    assert_eq!(policy.instances(), ready);
}

#[test]
fn without_rechecks_it_is_not() {
    let limits = Limits { recheck_one_in: 0, ..guest::limits() };
    let bench = guest::bench_with(&[("main.wasm", &guest::text(0))], limits);
    let policy = policy(&bench);
    let row = |_| match route(&policy, seed::COUNTS_CALLS) {
        Ok(Verdict::Route(route)) => route.placement,
        other => panic!("{other:?}"),
    };
    let rows: Vec<_> = (0..4).map(row).collect();
    assert_eq!(rows, [1, 0, 1, 0].map(Placement::Unified), "one warm instance, used again and again");
}

#[test]
fn too_many_calls_at_once_are_refused_as_busy() {
    let limits = Limits { instances_per_policy: 0, ..guest::limits() };
    let bench = guest::bench_with(&[("main.wasm", &guest::text(0))], limits);
    let policy = policy(&bench);
    // The two instances of the trial stay; once they fault, none may be made in their place.
    for _ in 0..2 {
        assert_eq!(route(&policy, seed::TRAP).expect_err("traps").kind(), "trap");
    }
    assert_eq!(route(&policy, seed::GOOD).expect_err("none left").kind(), "busy");
}

#[test]
fn the_other_hooks_answer() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    let policy = policy(&bench);
    let facts = testing::table(&[testing::prefill(), testing::decode()]);
    assert_eq!(policy.bind_decode(&facts, &guest::prefilled()), Ok(None));
    let turn = facts::TurnEnd {
        facts: facts.clone(),
        decode: 1,
        held_tokens: 1_099,
        output_tokens: 100,
        finish: facts::Finish::Stop,
    };
    assert_eq!(policy.retain(&turn), Ok(Retention::UseDefault));
    let lease = facts::Lease {
        facts,
        holder: 1,
        held_tokens: 1_099,
        idle_ms: 5_000,
        renewals: 0,
        expires_in_ms: 1_000,
    };
    assert_eq!(policy.heartbeat(&lease), Ok(Renewal::UseDefault));
}

#[test]
fn threads_share_a_policy_and_its_faults_stay_apart() {
    const THREADS: u64 = 4;
    const CALLS: u64 = 200;
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    let policy = policy(&bench);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let policy = &policy;
            scope.spawn(move || {
                for call in 0..CALLS {
                    if (call + thread).is_multiple_of(5) {
                        assert_eq!(route(policy, seed::TRAP).expect_err("traps").kind(), "trap");
                    } else {
                        assert_eq!(route(policy, seed::GOOD), Ok(Verdict::UseDefault));
                    }
                }
            });
        }
    });
    assert_eq!(policy.calls(), THREADS * CALLS);
    assert_eq!(policy.faults()["trap"], THREADS * CALLS / 5);
}

#[test]
fn facts_reach_a_policy_as_they_are() {
    let file = std::fs::read(guest::built("policies", "least-loaded")).unwrap();
    let bench = guest::bench(&[("main.wasm", &file)]);
    let policy = policy(&bench);
    for idle in 0..4_u32 {
        let mut facts = testing::table(&[testing::unified(); 4]);
        facts.load.running = (0..4).map(|row| if row == idle { 0 } else { 30 }).collect();
        facts.load.waiting.clone_from(&facts.load.running);
        let verdict = policy.route(&facts).unwrap();
        let Verdict::Route(route) = verdict else { panic!("{verdict:?}") };
        assert_eq!(route.placement, Placement::Unified(idle));
    }
}
