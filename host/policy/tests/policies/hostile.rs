//! Each guest that misbehaves, one file each in `tests/guests`: what becomes of it, and that what was in force goes on.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

use sluice_core::verdict::Verdict;
use sluice_policy::{Fault, Hook, HostConfig, Limits, LoadError, Observer, PolicyHost, Refusal};

use crate::guest;

/// What becomes of a file.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// It decides. What it does then is for other tests.
    Loads,
    /// Refused for what it is, by this kind of refusal.
    Refused(&'static str),
    /// Refused for what it did while it was set up: where, and the kind of fault.
    SetUp(Hook, &'static str),
    /// Refused for what it did on trial: where, and the kind of fault.
    Trial(Hook, &'static str),
}
use End::{Loads, Refused, SetUp, Trial};
use Hook::{BindDecode, Configure, Describe, Heartbeat, Retain, Route, Start};

type Row = (&'static str, End);

/// With the limits that a host has.
const BY_USUAL_LIMITS: &[Row] = &[
    ("impure-thousandth", Loads),
    ("keeps-turns", Loads),
    ("late-binding", Loads),
    ("nan-bits", Loads),
    ("on-demand", Loads),
    ("session-teller", Loads),
    ("tagged", Loads),
    ("transfer-as-told", Loads),
    ("fewest_requests", Loads),
    ("quiet", Loads),
    ("echo", Loads),
    // Time.
    ("endless-describe", SetUp(Describe, "cpu-deadline")),
    ("endless-configure", SetUp(Configure, "cpu-deadline")),
    ("endless-route", Trial(Route, "cpu-deadline")),
    ("endless-bind-decode", Trial(BindDecode, "cpu-deadline")),
    ("endless-retain", Trial(Retain, "cpu-deadline")),
    ("endless-heartbeat", Trial(Heartbeat, "cpu-deadline")),
    ("endless_start", SetUp(Start, "cpu-deadline")),
    ("endless_realloc", SetUp(Configure, "cpu-deadline")),
    ("endless_post_return", Trial(Route, "cpu-deadline")),
    ("endless_tail_calls", Trial(Route, "cpu-deadline")),
    ("endless_fills", Trial(Route, "cpu-deadline")),
    // Traps.
    ("trap-describe", SetUp(Describe, "trap")),
    ("trap-configure", SetUp(Configure, "trap")),
    ("trap-route", Trial(Route, "trap")),
    ("trap-bind-decode", Trial(BindDecode, "trap")),
    ("trap-retain", Trial(Retain, "trap")),
    ("trap-heartbeat", Trial(Heartbeat, "trap")),
    ("trap_start", SetUp(Start, "trap")),
    // Memory, tables, stack.
    ("memory_grow", Trial(Route, "memory")),
    ("memory_large", Refused("memory-too-large")),
    ("memory_second", Refused("not-usable")),
    ("memory_wide", Refused("not-usable")),
    ("table_grow", Trial(Route, "table")),
    ("table_large", Refused("not-usable")),
    ("stack_overflow", Trial(Route, "stack")),
    ("lying_realloc", SetUp(Configure, "bad-answer")),
    ("crooked_realloc", Trial(Route, "bad-answer")),
    // Texts and lists.
    ("huge-name", Refused("description")),
    ("huge-version", Refused("description")),
    ("huge-about", Refused("description")),
    ("huge-schema", SetUp(Describe, "bad-answer")),
    ("huge-everything", SetUp(Describe, "bad-answer")),
    ("huge-refusal", Refused("configure-refused")),
    ("huge-refusal-text", SetUp(Configure, "bad-answer")),
    ("huge-reason", Trial(Route, "bad-value")),
    ("huge-reason-text", Trial(Route, "bad-answer")),
    ("huge-hints", Trial(Route, "bad-value")),
    ("huge-rejection", Trial(Route, "bad-value")),
    ("seventeen-hints", Trial(Route, "bad-value")),
    ("hints_without_end", Trial(Route, "bad-answer")),
    ("hints_all_alike", Trial(Route, "bad-answer")),
    ("text_outside", Trial(Route, "bad-answer")),
    ("text_of_all_memory", Trial(Route, "bad-answer")),
    ("text_no_utf8", Trial(Route, "bad-answer")),
    // Values that are none, or that cannot be executed.
    ("no_such_case", Trial(Route, "bad-answer")),
    ("bad-row", Trial(Route, "bad-row")),
    ("bad-row-bind-decode", Trial(BindDecode, "bad-row")),
    ("wrong-role", Trial(Route, "bad-row")),
    ("wrong-role-bind-decode", Trial(BindDecode, "bad-row")),
    ("draining-row", Trial(Route, "bad-row")),
    ("other-group", Trial(Route, "bad-row")),
    ("push-too-late", Trial(Route, "bad-row")),
    ("rejects-with-success", Trial(Route, "bad-value")),
    ("endless-hold", Trial(Retain, "bad-value")),
    ("no-hold", Trial(Retain, "bad-value")),
    ("restless-lease", Trial(Retain, "bad-value")),
    ("late-heartbeat", Trial(Retain, "bad-value")),
    ("endless-renewal", Trial(Heartbeat, "bad-value")),
    ("no-renewal", Trial(Heartbeat, "bad-value")),
    // State.
    ("impure", Trial(Route, "impure")),
    ("impure-fiftieth", Trial(Route, "impure")),
    ("impure-fiftieth-seed", Trial(Route, "impure")),
    ("remembers", Trial(Route, "impure")),
    ("counts-heartbeats", Trial(Heartbeat, "impure")),
    // Files that are no policy, or another host's.
    ("refuses-settings", Refused("configure-refused")),
    ("no-world", Refused("no-world")),
    ("no_hooks", Refused("no-hooks")),
    ("wrong_version", Refused("wrong-version")),
    ("wrong_types_module", Refused("not-usable")),
    ("wrong_types_component", Refused("not-usable")),
    ("wasi_preview1", Refused("imports")),
    ("wasi_clock", Refused("imports")),
    ("function_in_types", Refused("not-usable")),
    ("instance_bomb", Refused("too-many-instances")),
];

/// Where the time of a call must not end it before something else does.
const BY_PATIENT_CALLS: &[Row] = &[
    ("memory-bomb-describe", SetUp(Describe, "memory")),
    ("memory-bomb-configure", SetUp(Configure, "memory")),
    ("memory-bomb-route", Trial(Route, "memory")),
    ("memory-bomb-bind-decode", Trial(BindDecode, "memory")),
    ("memory-bomb-retain", Trial(Retain, "memory")),
    ("memory-bomb-heartbeat", Trial(Heartbeat, "memory")),
    ("endless-recursion", Trial(Route, "stack")),
    ("many-hints", Trial(Route, "bad-answer")),
];

/// Where the time of setting up must not end it before its length is found out.
const BY_PATIENT_SET_UP: &[Row] = &[("slow_start", Refused("slow-set-up"))];

fn patient_calls() -> Limits {
    Limits { cpu_budget_ms: 30_000, configure_cpu_budget_ms: 30_000, ..guest::limits() }
}

fn patient_set_up() -> Limits {
    Limits { configure_cpu_budget_ms: 30_000, ..guest::limits() }
}

/// Keeps the last refusal.
#[derive(Default)]
struct LastRefusal(Mutex<Option<Refusal>>);

impl LastRefusal {
    fn take(&self) -> Option<Refusal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Observer for LastRefusal {
    fn refused(&self, _: &str, error: &LoadError, in_force: bool) {
        assert!(in_force, "the good version stays");
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.reason.clone());
    }
}

fn end(refusal: Option<Refusal>) -> End {
    match refusal {
        None => Loads,
        Some(Refusal::SetUp(fault)) => SetUp(fault.hook(), fault.kind()),
        Some(Refusal::Trial { fault, .. }) => Trial(fault.hook(), fault.kind()),
        Some(refusal) => Refused(refusal.kind()),
    }
}

/// One host, in whose folder each file takes the place of a good policy, which decides on where the file is refused.
fn drop_in_turn(rows: &[Row], limits: Limits) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("main.wasm");
    let good = |tag| fs::write(&file, guest::text(tag)).unwrap();
    good(0);
    let refusals = Arc::new(LastRefusal::default());
    let config = HostConfig {
        folder: folder.path().to_owned(),
        default: "main".to_owned(),
        limits,
        cache_folder: None,
        compiler: None,
    };
    let host = PolicyHost::open(config, Arc::clone(&refusals) as Arc<dyn Observer>).unwrap();
    let facts = guest::facts(guest::seed::GOOD);
    for (tag, (name, expected)) in (1..).zip(rows) {
        let before = host.generation().number;
        fs::write(&file, guest::bytes(name)).unwrap();
        let outcome = host.reload();
        let refusal = refusals.take();
        let sentence = refusal.as_ref().map(ToString::to_string).unwrap_or_default();
        assert_eq!(end(refusal), *expected, "{name}: {sentence}");
        assert!(sentence.len() < 4_096 && !sentence.contains('\n'), "{name} fits a log line: {sentence}");
        if *expected == Loads {
            assert_eq!(outcome.loaded, ["main"], "{name}");
            // The good one again, for the next row.
            good(tag);
            assert_eq!(host.reload().loaded, ["main"], "after {name}");
        } else {
            assert!(!outcome.swapped && outcome.generation == before, "{name}: {outcome:?}");
        }
        let generation = host.generation();
        let policy = generation.default_policy().expect("a good policy is in force");
        assert_eq!(policy.route(&facts), Ok(Verdict::UseDefault), "after {name}");
    }
}

#[test]
fn guests_by_usual_limits() {
    drop_in_turn(BY_USUAL_LIMITS, guest::limits());
}

#[test]
fn guests_that_take_all_they_get() {
    drop_in_turn(BY_PATIENT_CALLS, patient_calls());
}

#[test]
fn guests_that_are_slow_to_start() {
    drop_in_turn(BY_PATIENT_SET_UP, patient_set_up());
}

#[test]
fn each_guest_has_a_row() {
    let mut rows = BTreeMap::new();
    for (name, _) in [BY_USUAL_LIMITS, BY_PATIENT_CALLS, BY_PATIENT_SET_UP].into_iter().flatten() {
        *rows.entry(*name).or_insert(0) += 1;
    }
    let files = guest::names();
    let without_row: Vec<_> = files.iter().filter(|name| !rows.contains_key(name.as_str())).collect();
    assert!(without_row.is_empty(), "guests that no test drops in: {without_row:?}");
    for (name, count) in rows {
        assert_eq!(count, 1, "{name} has one row");
        assert!(files.iter().any(|file| file == name), "{name} has a file");
    }
}

#[test]
fn a_bad_file_at_the_start_leaves_the_host_without_it() {
    for name in ["trap-configure", "endless_start", "instance_bomb"] {
        let bench = guest::bench(&[("main.wasm", &guest::bytes(name))]);
        assert!(bench.host.generation().default_policy().is_none(), "{name}: the built-in default decides");
        assert!(bench.log.take().iter().any(|line| line.starts_with("refused main")), "{name}");
    }
}

/// What a guest does in each hook once it is in force, and the fault that it is.
#[test]
fn guests_that_fail_in_production_fail_alone() {
    let limits = Limits { recheck_one_in: 0, ..patient_calls() };
    for (limits, moods) in [
        (guest::limits(), &[("trap", "trap"), ("loop", "cpu-deadline")][..]),
        (limits, &[("memory", "memory")]),
    ] {
        let bench = guest::bench_with(&[("main.wasm", &guest::bytes("on-demand"))], limits);
        let generation = bench.host.generation();
        let policy = generation.default_policy().unwrap();
        for (mood, kind) in moods {
            for hook in [Route, BindDecode, Retain, Heartbeat] {
                let fault = guest::ask(policy, hook, mood).expect_err(mood);
                assert_eq!((fault.hook(), fault.kind()), (hook, *kind), "{fault}");
                assert_eq!(guest::ask(policy, hook, "good"), Ok(()), "{hook} after {mood}");
            }
        }
    }
}

#[test]
fn answers_that_cannot_be_executed_are_faults_in_production() {
    let bench = guest::bench(&[("main.wasm", &guest::bytes("on-demand"))]);
    let generation = bench.host.generation();
    let policy = generation.default_policy().unwrap();
    for (hook, mood, kind) in [
        (Route, "bad-row", "bad-row"),
        (Route, "talk", "bad-answer"),
        (BindDecode, "bad-row", "bad-row"),
        (BindDecode, "wrong-role", "bad-row"),
        (Retain, "for-ever", "bad-value"),
        (Heartbeat, "for-ever", "bad-value"),
    ] {
        let fault: Fault = guest::ask(policy, hook, mood).expect_err(mood);
        assert_eq!((fault.hook(), fault.kind()), (hook, kind), "{fault}");
    }
    assert_eq!(guest::ask(policy, Route, "reject"), Ok(()), "a policy may refuse a request");
}
