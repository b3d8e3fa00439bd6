//! A policy that fails too often decides no more: its last good version takes over, or else the built-in default.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_core::verdict::Verdict;
use sluice_policy::{Failing, LIVE_GENERATIONS_MAX, Limits, Policy, PolicyState, PolicyStatus};

use crate::guest::{self, Bench, seed};

fn deciding(bench: &Bench) -> Option<Arc<Policy>> {
    bench.host.generation().default_policy().cloned()
}

fn digest(bench: &Bench) -> Option<String> {
    deciding(bench).map(|policy| policy.digest().to_owned())
}

fn status(bench: &Bench, name: &str) -> PolicyStatus {
    bench.host.status().into_iter().find(|status| status.name == name).expect(name)
}

/// As many faults as it takes when there was no good call.
fn fail(policy: &Policy) {
    for _ in 0..5 {
        assert_eq!(policy.route(&guest::facts(seed::TRAP)).expect_err("traps").kind(), "trap");
    }
}

fn good(policy: &Policy) {
    assert_eq!(policy.route(&guest::facts(seed::GOOD)), Ok(Verdict::UseDefault));
}

/// `main` in version 0, then in version 1, which is put aside.
fn second_put_aside() -> (Bench, String) {
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    let first = digest(&bench).unwrap();
    bench.put("main.wasm", &guest::text(1));
    bench.host.reload();
    bench.log.take();
    fail(&deciding(&bench).unwrap());
    (bench, first)
}

#[test]
fn the_last_good_version_takes_over_at_once() {
    let (bench, first) = second_put_aside();
    let mut expected = vec!["fault main route trap".to_owned(); 5];
    expected.push(format!("put aside main for {}", &first[..12]));
    expected.push("generation 3 main".to_owned());
    assert_eq!(bench.log.take(), expected);
    assert_eq!(digest(&bench), Some(first.clone()));
    let generation = bench.host.generation();
    let aside = generation.put_aside("main").expect("another decides in its place");
    assert_ne!(aside.digest(), first);
    let named = generation.named("main");
    assert!(named.put_aside.is_some_and(|named| Arc::ptr_eq(named, aside)));
    assert_eq!(named.deciding.map(|policy| policy.digest()), Some(first.as_str()));
    let nobody = generation.named("other");
    assert!(nobody.deciding.is_none() && nobody.put_aside.is_none());

    let told = status(&bench, "main");
    assert_eq!((told.state, told.generation_since), (PolicyState::PutAside, Some(2)));
    assert_eq!(told.digest.as_deref(), Some(aside.digest()), "the file's version is what is listed");
    let why = told.put_aside.expect("says why");
    assert!(
        why.message.starts_with("5 of its last 5 calls failed, at last: `route` trapped"),
        "{}",
        why.message
    );
    assert!(why.why.at_ms > 1_700_000_000_000, "a date");
    assert_eq!(why.instead.map(|instead| instead.digest), Some(first));

    // It keeps instances again, although it was superseded once.
    let back = deciding(&bench).unwrap();
    (0..3).for_each(|_| good(&back));
    assert_eq!(back.instances(), 1);
    // Who took the other before is still answered, and tells nothing anew.
    fail(aside);
    good(aside);
    assert!(bench.log.take().iter().all(|line| line.starts_with("fault ")));
}

#[test]
fn the_same_file_stays_aside_and_a_change_gets_a_fresh_chance() {
    let (bench, first) = second_put_aside();
    let same = bench.host.reload();
    assert_eq!((same.generation, same.swapped), (3, false));
    bench.put("main.wasm", &guest::text(1));
    assert!(!bench.host.reload().swapped, "the same bytes again");
    assert_eq!(digest(&bench), Some(first.clone()));

    bench.put("main.toml", b"");
    assert!(bench.host.reload().swapped, "other settings");
    assert_ne!(digest(&bench), Some(first.clone()));
    assert_eq!((status(&bench, "main").state, status(&bench, "main").put_aside), (PolicyState::Loaded, None));
    // The last good version is the one that decided before, not the file before.
    fail(&deciding(&bench).unwrap());
    assert_eq!(digest(&bench), Some(first.clone()));

    bench.put("main.wasm", &guest::text(2));
    assert!(bench.host.reload().swapped, "another file");
    assert_ne!(digest(&bench), Some(first));
    good(&deciding(&bench).unwrap());
}

#[test]
fn a_bad_file_leaves_what_decides_in_place_of_a_policy_put_aside() {
    let (bench, first) = second_put_aside();
    bench.put("main.wasm", b"no wasm");
    assert!(!bench.host.reload().swapped);
    assert_eq!(digest(&bench), Some(first));
    let told = status(&bench, "main");
    assert_eq!(
        (told.state, told.refusal.map(|refusal| refusal.kind)),
        (PolicyState::PutAside, Some("not-wasm"))
    );
}

#[test]
fn without_a_good_version_the_built_in_default_takes_over() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0)), ("other.wasm", &guest::text(1))]);
    bench.log.take();
    fail(&deciding(&bench).unwrap());
    let log = bench.log.take();
    assert_eq!(log[5..], ["put aside main for the built-in default", "generation 2 other"]);
    assert!(deciding(&bench).is_none() && bench.host.generation().put_aside("main").is_some());
    assert_eq!(status(&bench, "main").put_aside.expect("says so").instead, None);
    assert_eq!(status(&bench, "other").state, PolicyState::Loaded);
}

#[test]
fn the_last_good_version_may_fail_too() {
    let (bench, _) = second_put_aside();
    bench.log.take();
    let taken_over = deciding(&bench).unwrap();
    fail(&taken_over);
    assert_eq!(bench.log.take()[5..], ["put aside main for the built-in default", "generation 4 "]);
    assert!(deciding(&bench).is_none());
    // Whatever else changes in the folder.
    bench.put("other.wasm", &guest::text(3));
    bench.host.reload();
    assert!(deciding(&bench).is_none());
}

#[test]
fn a_last_good_version_outlasts_all_swaps() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    let first = digest(&bench);
    bench.put("main.wasm", &guest::text(1));
    bench.host.reload();
    for tag in 0..2 * LIVE_GENERATIONS_MAX as u32 {
        bench.put("other.wasm", &guest::text(100 + tag));
        assert!(bench.host.reload().swapped);
    }
    fail(&deciding(&bench).unwrap());
    assert_eq!(digest(&bench), first);
    good(&deciding(&bench).unwrap());
    // And goes on while the others change.
    for tag in 0..2 * LIVE_GENERATIONS_MAX as u32 {
        bench.put("other.wasm", &guest::text(200 + tag));
        assert!(bench.host.reload().swapped);
    }
    good(&deciding(&bench).unwrap());
}

#[test]
fn a_removed_file_is_forgotten_with_its_faults() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0)), ("other.wasm", &guest::text(1))]);
    let other = Arc::clone(bench.host.generation().policy("other").unwrap());
    fail(&other);
    assert!(bench.host.generation().policy("other").is_none());
    bench.remove("other.wasm");
    assert!(bench.host.reload().swapped);
    assert!(bench.host.generation().put_aside("other").is_none());
    bench.put("other.wasm", &guest::text(1));
    bench.host.reload();
    good(bench.host.generation().policy("other").expect("a fresh chance"));
}

/// Both are facts: who decides in its place, and that no file would come back at a restart.
#[test]
fn a_policy_put_aside_whose_file_is_gone_is_told_as_both() {
    let (bench, first) = second_put_aside();
    bench.remove("main.wasm");
    bench.host.reload();
    let told = status(&bench, "main");
    assert_eq!(told.state, PolicyState::RemovedButBound);
    let instead = told.put_aside.expect("and put aside").instead.map(|instead| instead.digest);
    assert_eq!(instead, Some(first));
}

#[test]
fn few_faults_put_nothing_aside() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    let policy = deciding(&bench).unwrap();
    for call in 1..=2_400 {
        let seed = if call % 200 == 0 { seed::TRAP } else { seed::GOOD };
        assert_eq!(policy.route(&guest::facts(seed)).is_ok(), seed == seed::GOOD);
    }
    assert_eq!((policy.faults()["trap"], policy.put_aside()), (12, None));
}

/// Its answers differ all the time, but only one in 256 is looked at twice.
#[test]
fn hidden_state_puts_a_policy_aside() {
    let limits = Limits { recheck_one_in: 256, cpu_budget_ms: 1_000, ..guest::limits() };
    let bench = guest::bench_with(&[("main.wasm", &guest::text(0))], limits);
    let policy = deciding(&bench).unwrap();
    let mut calls = 0;
    while deciding(&bench).is_some() {
        calls += 1;
        assert!(calls < 20_000, "{:?}", policy.faults());
        let _ = policy.route(&guest::facts(seed::COUNTS_CALLS));
    }
    let why = policy.put_aside().unwrap();
    assert_eq!((why.failing, why.faults), (Failing::ReRuns, 5), "{why}");
    assert_eq!(policy.faults().keys().collect::<Vec<_>>(), [&"impure"]);
}

/// Requests go on while a policy is put aside and the folder changes: none is lost, and what was put aside stays so.
#[test]
fn a_policy_put_aside_while_the_folder_is_read_stays_so() {
    for round in 0..4 {
        let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
        let first = digest(&bench);
        bench.put("main.wasm", &guest::text(1));
        bench.host.reload();
        let (failing, done) = (deciding(&bench).unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let requests = || {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let generation = bench.host.generation();
                    assert!(generation.number >= last, "generations count up");
                    last = generation.number;
                    good(generation.default_policy().expect("some version decides at all times"));
                }
            };
            scope.spawn(requests);
            scope.spawn(|| {
                while failing.put_aside().is_none() {
                    assert!(failing.route(&guest::facts(seed::TRAP)).is_err());
                }
            });
            for tag in 0..4 {
                bench.put("other.wasm", &guest::text(10 + round * 4 + tag));
                assert!(bench.host.reload().swapped);
            }
            while bench.host.generation().put_aside("main").is_none() {
                std::thread::yield_now();
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(digest(&bench), first);
    }
}
