//! `restart`: how soon after its start does a host with many policies decide by them?
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use serde_json::Value;
use sluice_harness::process::{Process, address_after, exit_code_of};
use sluice_harness::quantiles::quantile_ms;
use sluice_harness::table::Table;
use sluice_harness::{Client, HostPlan, Mode, PolicyFile, budget};
use tokio::time::{Instant, timeout};

/// The shipped policies that the folder is filled with, in turn.
const SHIPPED: [&str; 5] = ["adaptive", "round-robin", "least-loaded", "random", "vllm-defaults"];

/// From the process's start until `/ready` names the deciding policy, and all of them are loaded.
const RESTART_TARGET_MS: f64 = 200.0;

/// Until a host stops when told to, with no request on it.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// The whole run; it takes a few seconds.
const RUN_WITHIN: Duration = Duration::from_secs(300);

/// Starts a host over and over with the same folder of policies: the first time it compiles them, later it takes them from its
/// cache.
///
/// Ends with 0 only if the median restart is within its budget, and no policy was compiled again.
#[derive(Debug, Parser)]
#[command(name = "restart")]
struct Options {
    /// Policies in the folder.
    #[arg(long, default_value_t = 20)]
    policies: u32,
    /// Restarts after the first start.
    #[arg(long, default_value_t = 21)]
    restarts: u32,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    exit_code_of(async { timeout(RUN_WITHIN, bench(&options)).await? }).await
}

async fn bench(options: &Options) -> anyhow::Result<bool> {
    let folder = tempfile::tempdir()?;
    fs::create_dir(folder.path().join("policies.d"))?;
    for number in 0..options.policies {
        let shipped = SHIPPED[number as usize % SHIPPED.len()];
        // Each a file of its own: equal ones would share a place in the cache.
        let file = PolicyFile::policy(&format!("p{number:02}"), shipped)?.marked(number);
        fs::write(folder.path().join(format!("policies.d/{}.wasm", file.name)), &file.wasm)?;
    }
    // Nobody listens there, which no policy minds.
    let plan = HostPlan::new(Mode::Unified).worker("unified", "http://127.0.0.1:1").policy("p00");
    fs::write(folder.path().join("sluice.toml"), plan.toml())?;

    println!("{} policies; one first start, then {} restarts", options.policies, options.restarts);
    let first = start(folder.path(), options.policies, "compiled").await?;
    let mut restarts = Vec::new();
    for _ in 0..options.restarts {
        restarts.push(start(folder.path(), options.policies, "cached").await?);
    }
    Ok(report(first, &restarts))
}

/// One start, from the process's beginning until its policies are in force; each one's code must come from where it is
/// said to.
async fn start(folder: &Path, policies: u32, code: &str) -> anyhow::Result<Duration> {
    let config = folder.join("sluice.toml").display().to_string();
    let arguments = ["serve".to_owned(), "--config".to_owned(), config];
    let started = Instant::now();
    let (mut host, line) = Process::start("host", &arguments, folder).await?;
    let admin = address_after(&line, "admin on http://").context("the host tells no admin address")?;
    let admin = Client::new(&format!("http://{admin}"));
    let ready = admin.get("/ready").await?.json();
    let took = started.elapsed();
    ensure!(ready["policy"]["in_force"] == "p00", "not in force: {ready}\n{}", host.log());
    let listed = admin.get("/admin/policies").await?.json();
    let loaded = |policy: &&Value| policy["state"] == "loaded" && policy["code"] == code;
    let count = listed["policies"].as_array().into_iter().flatten().filter(loaded).count();
    ensure!(count == policies as usize, "{count} of {policies} policies {code}: {listed}");
    host.terminate()?;
    host.ended(STOP_WITHIN).await?;
    Ok(took)
}

/// Prints the figures; says whether the budget is met.
fn report(first: Duration, restarts: &[Duration]) -> bool {
    let mut table = Table::new(&["start", "count", "p50 ms", "p90 ms", "max ms"]);
    for (what, times) in [("first, compiling", &[first][..]), ("again, cached", restarts)] {
        let ms = |share| quantile_ms(times, share).map_or("-".to_owned(), |ms| format!("{ms:.1}"));
        table.row([what.to_owned(), times.len().to_string(), ms(0.5), ms(0.9), ms(1.0)]);
    }
    println!("\n{table}");
    let median = quantile_ms(restarts, 0.5);
    let shown = median.map_or("nothing".to_owned(), |ms| format!("{ms:.1} ms"));
    let is_met = median.is_some_and(|ms| ms <= RESTART_TARGET_MS);
    println!(
        "{}",
        budget::line("policy.restart", &format!("{RESTART_TARGET_MS:.0} ms median"), &shown, is_met)
    );
    is_met
}
