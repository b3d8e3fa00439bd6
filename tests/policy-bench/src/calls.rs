//! What one call costs, by the size of the fleet and by hook, through WASM and natively.

use std::hint::black_box;
use std::sync::Arc;

use adaptive::Adaptive;
use anyhow::{Context, ensure};
use sluice_core::facts::{Facts, Finish, Lease, Prefilled, TurnEnd};
use sluice_harness::budget::line;
use sluice_harness::table::Table;
use sluice_policy::Policy;
use sluice_policy_sdk as sdk;

use crate::both::{host_facts, host_verdict};
use crate::fleet;
use crate::rounds::{Case, Plan, Time, measure};
use crate::us::{shown, us};

/// Sizes of fleets.
pub const ROWS: [u64; 5] = [2, 64, 256, 1_024, 4_096];
/// Native, through WASM, passing the facts alone, with labels.
const CASES_A_SIZE: usize = 4;
/// Labels of the requests that have some.
const LABELS: usize = 8;
/// The fleet that hooks are asked about.
const HOOK_ROWS: u64 = 64;

const FIXED_US_AT_MOST: f64 = 3.0;
const ROWS64_US_AT_MOST: f64 = 3.6;
const ROWS1024_US_AT_MOST: f64 = 11.0;
const ROWS1024_NATIVE_AT_MOST: f64 = 6.0;
const LABEL_US_AT_MOST: f64 = 0.25;

/// One question, on both sides.
struct Question {
    rows: u64,
    guest: sdk::Facts,
    host: Facts,
    labelled: Facts,
    /// Asks `retain`, which looks at no worker: what passing the facts costs.
    passed: TurnEnd,
}

/// Measures `route` by rows, and every hook; prints tables and budgets.
pub fn run(policy: &Arc<Policy>, plan: Plan) -> anyhow::Result<()> {
    let native = <Adaptive as sdk::Policy>::configure("{}").map_err(anyhow::Error::msg)?;
    let questions: Vec<_> = ROWS
        .iter()
        .map(|rows| {
            let guest = fleet::facts(*rows, 0);
            let labelled = host_facts(&fleet::facts(*rows, LABELS));
            let host = host_facts(&guest);
            Question { rows: *rows, passed: turn_end(&host), host, guest, labelled }
        })
        .collect();
    for question in &questions {
        let through = policy.route(&question.host)?;
        let direct = host_verdict(sdk::Policy::route(&native, &question.guest));
        ensure!(through == direct, "{} rows: {through:?} through WASM, {direct:?} natively", question.rows);
    }
    let hooks = Hooks::new();
    let mut cases = Vec::new();
    for question in &questions {
        let ask_native = || anyhow::Ok(sdk::Policy::route(&native, black_box(&question.guest)));
        cases.push(Case::new("native", ask_native));
        cases.push(Case::new("wasm", || policy.route(black_box(&question.host))));
        cases.push(Case::new("passing", || policy.retain(black_box(&question.passed))));
        cases.push(Case::new("labels", || policy.route(black_box(&question.labelled))));
    }
    cases.extend(hooks.cases(policy));
    let times = measure(cases, plan)?;
    let (by_rows, by_hook) = times.split_at(ROWS.len() * CASES_A_SIZE);
    print_rows(by_rows)?;
    print_hooks(by_hook);
    Ok(())
}

/// Questions for the hooks other than `route`.
struct Hooks {
    facts: Facts,
    prefilled: Prefilled,
    turn: TurnEnd,
    lease: Lease,
}

impl Hooks {
    fn new() -> Self {
        let facts = host_facts(&fleet::facts(HOOK_ROWS, 0));
        Self {
            prefilled: Prefilled { prefill: 0, tokens: 4_000, took_ms: 400, handle_expires_in_ms: 28_000 },
            turn: turn_end(&facts),
            lease: Lease {
                facts: facts.clone(),
                holder: 1,
                held_tokens: 4_400,
                idle_ms: 5_000,
                renewals: 1,
                expires_in_ms: 9_000,
            },
            facts,
        }
    }

    fn cases<'a>(&'a self, policy: &'a Policy) -> [Case<'a>; 4] {
        [
            Case::new("route", || policy.route(black_box(&self.facts))),
            Case::new("bind-decode", || policy.bind_decode(black_box(&self.facts), &self.prefilled)),
            Case::new("retain", || policy.retain(black_box(&self.turn))),
            Case::new("heartbeat", || policy.heartbeat(black_box(&self.lease))),
        ]
    }
}

fn turn_end(facts: &Facts) -> TurnEnd {
    let facts = facts.clone();
    TurnEnd { facts, decode: 1, held_tokens: 4_400, output_tokens: 400, finish: Finish::Stop }
}

fn print_rows(times: &[Time]) -> anyhow::Result<()> {
    let heads = ["rows", "native us", "wasm us", "median us", "x native", "of it passing", "us a label"];
    let mut table = Table::new(&heads);
    for (rows, times) in ROWS.iter().zip(times.chunks(CASES_A_SIZE)) {
        let [native, wasm, passing, labelled] = times else { continue };
        table.row([
            rows.to_string(),
            shown(native.best),
            shown(wasm.best),
            shown(wasm.median),
            format!("{:.1}", us(wasm.best) / us(native.best)),
            shown(passing.best),
            format!("{:.2}", label_us(wasm, labelled)),
        ]);
    }
    println!("adaptive, route\n{table}");
    let of = |rows: u64| {
        let at = ROWS.iter().position(|have| *have == rows).context("a size that is measured")?;
        times.chunks(CASES_A_SIZE).nth(at).context("as many times a size")
    };
    let (fixed, rows64, rows1024) = (of(2)?, of(64)?, of(1_024)?);
    for (budget, time, most) in [
        ("policy.fixed", &fixed[1], FIXED_US_AT_MOST),
        ("policy.rows64", &rows64[1], ROWS64_US_AT_MOST),
        ("policy.rows1024", &rows1024[1], ROWS1024_US_AT_MOST),
    ] {
        let (found, target) = (us(time.best), format!("<= {most} us"));
        println!("{}", line(budget, &target, &format!("{found:.2} us"), found <= most));
    }
    let (ratio, most) = (us(rows1024[1].best) / us(rows1024[0].best), ROWS1024_NATIVE_AT_MOST);
    let target = format!("<= {most}x native");
    println!("{}", line("policy.rows1024", &target, &format!("{ratio:.1}x"), ratio <= most));
    let label = label_us(&rows64[1], &rows64[3]);
    let target = format!("<= {LABEL_US_AT_MOST} us each");
    println!("{}\n", line("policy.labels", &target, &format!("{label:.2} us"), label <= LABEL_US_AT_MOST));
    Ok(())
}

fn label_us(without: &Time, with: &Time) -> f64 {
    (us(with.best) - us(without.best)) / LABELS as f64
}

fn print_hooks(times: &[Time]) {
    let mut table = Table::new(&["hook", "wasm us", "median us"]);
    for time in times {
        table.row([time.name.clone(), shown(time.best), shown(time.median)]);
    }
    println!("adaptive, {HOOK_ROWS} rows\n{table}");
}
