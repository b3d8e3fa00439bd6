//! What comes before a call: compiling, an instance, the call after a fault.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use sluice_harness::artifacts;
use sluice_harness::table::Table;
use sluice_policy::{HostConfig, Limits, Policy, PolicyHost, Stages};

use crate::both::host_facts;
use crate::fleet;
use crate::rounds::{Case, Plan, measure};
use crate::us::shown;

/// Calls between two faults: half a percent of all, which no host holds against a policy.
const CALLS_A_FAULT: usize = 200;

/// A host on a folder, as `sluice serve` opens it, and the policy `default` of it.
pub fn open(folder: &Path, default: &str) -> anyhow::Result<(Arc<PolicyHost>, Arc<Policy>)> {
    let config = HostConfig {
        folder: folder.to_owned(),
        default: default.to_owned(),
        limits: Limits::default(),
        cache_folder: None,
        compiler: None,
    };
    let host = PolicyHost::open(config, Arc::new(()))?;
    let policy = host.generation().policy(default).cloned();
    let refusal = || host.status().into_iter().find_map(|status| status.refusal.map(|why| why.message));
    let policy = policy.with_context(|| format!("{default} is not in force: {:?}", refusal()))?;
    Ok((host, policy))
}

/// Compile and instantiate.
pub fn stages(plan: Plan) -> anyhow::Result<()> {
    let wasm = artifacts::policy("adaptive")?;
    // No pool of a thousand: it would be reserved a second time beside the host's.
    let stages = Stages::new(Limits { instances_total: 16, ..Limits::default() })?;
    let compiled = stages.compile(&wasm)?;
    let cases = vec![
        Case::new("instantiate", || stages.instantiate(&compiled)),
        Case::new("instantiate, configure", || stages.set_up(&compiled, "{}")),
        Case::new("compile", || stages.compile(&wasm)),
    ];
    let mut table = Table::new(&["stage", "us", "median us"]);
    for time in measure(cases, plan)? {
        table.row([time.name, shown(time.best), shown(time.median)]);
    }
    println!("adaptive, {} KB\n{table}", wasm.len().div_ceil(1024));
    Ok(())
}

/// A trap, and what the call after it pays for an instance that is gone.
pub fn faults(calls: usize) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("main.wasm"), artifacts::guest("on-demand")?)?;
    let (_host, policy) = open(folder.path(), "main")?;
    let good = host_facts(&fleet::facts(64, 0));
    let mut trapping = good.clone();
    trapping.request.labels.push(("x-mood".to_owned(), "trap".to_owned()));
    // The idle instances go first; then each fault leaves none.
    let (mut ordinary, mut faulted, mut after) = (Vec::new(), Vec::new(), Vec::new());
    let time = |facts| {
        let began = Instant::now();
        let answer = policy.route(facts);
        (began.elapsed(), answer.is_ok())
    };
    for number in 0..calls * CALLS_A_FAULT {
        let (took, good_answer) = time(if number % CALLS_A_FAULT == 0 { &trapping } else { &good });
        ensure!(good_answer != (number % CALLS_A_FAULT == 0), "call {number} of the guest that traps");
        match number % CALLS_A_FAULT {
            0 => faulted.push(took),
            1 => after.push(took),
            _ => ordinary.push(took),
        }
    }
    let mut table = Table::new(&["call", "median us", "slowest us"]);
    for (name, mut times) in [("good", ordinary), ("trap", faulted), ("the next one", after)] {
        times.sort_unstable();
        let at = |index: usize| times.get(index).copied().map_or_else(String::new, shown);
        table.row([name.to_owned(), at(times.len() / 2), at(times.len().saturating_sub(1))]);
    }
    println!("a guest that traps in one call of {CALLS_A_FAULT}\n{table}");
    Ok(())
}
