//! `loops`: do clients wait for a policy that loops in some calls for others?
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use sluice_harness::process::exit_code_of;
use sluice_harness::quantiles::quantile_ms;
use sluice_harness::table::Table;
use sluice_harness::{Ask, Client, Fleet, FleetPlan, PolicyFile, budget};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// How much longer others may wait, p99.
const TARGET_MS: f64 = 10.0;

/// One request in so many loops: half of what puts a policy aside.
const LOOPS_ONE_IN: u64 = 200;

/// Engines at half their stated speed's time: as many requests as a machine can serve beside its engines.
const ENGINES: &str = "--time-scale 0.5";

/// Has clients ask one request after another, in windows with and without loops in turn, and compares the p99 of
/// requests that did not loop.
///
/// The policy is a guest that loops when a request's label asks it to; the host ends each loop when its CPU budget is
/// spent, and its default decides. Ends with 0 only if no request failed and the budget is met.
#[derive(Debug, Parser)]
#[command(name = "loops")]
struct Options {
    /// Clients at a time.
    #[arg(long, default_value_t = 64)]
    clients: u64,
    /// Windows of each kind.
    #[arg(long, default_value_t = 6)]
    rounds: u32,
    /// Length of a window.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

/// What all clients share.
#[derive(Debug, Default)]
struct Run {
    looping: AtomicBool,
    ended: AtomicBool,
    /// Requests of looping windows.
    asked: AtomicU64,
}

/// One request.
#[derive(Debug)]
struct Asked {
    /// Its window has loops.
    looping: bool,
    /// It is one of them.
    loops: bool,
    took: Duration,
    failed: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    exit_code_of(bench(&options)).await
}

async fn bench(options: &Options) -> anyhow::Result<bool> {
    println!(
        "{} clients for {} windows of {} s, in every other one the policy loops in 1 of {LOOPS_ONE_IN} calls",
        options.clients,
        2 * options.rounds,
        options.seconds
    );
    let guest = PolicyFile::guest("moody", "on-demand")?;
    let mut plan = FleetPlan::pull(1, 1).engines("", ENGINES).decided_by(guest);
    plan.host.policy_keys = "labels = [\"x-mood\"]".into();
    let fleet = plan.start().await?;
    let run = Arc::new(Run::default());
    let mut clients = JoinSet::new();
    for number in 0..options.clients {
        clients.spawn(client(fleet.client().clone(), run.clone(), number));
    }
    for window in 0..2 * options.rounds {
        run.looping.store(window % 2 == 1, Ordering::Relaxed);
        sleep(Duration::from_secs(options.seconds)).await;
    }
    run.ended.store(true, Ordering::Relaxed);
    let asked: Vec<_> = clients.join_all().await.into_iter().flatten().collect();
    report(&asked, &fleet).await
}

/// Asks until the end.
async fn client(client: Client, run: Arc<Run>, number: u64) -> Vec<Asked> {
    let mut asked = Vec::new();
    while !run.ended.load(Ordering::Relaxed) {
        let looping = run.looping.load(Ordering::Relaxed);
        let loops = looping && run.asked.fetch_add(1, Ordering::Relaxed) % LOOPS_ONE_IN == LOOPS_ONE_IN - 1;
        asked.push(request(&client, looping, loops, number * 1_000_000 + asked.len() as u64).await);
    }
    asked
}

/// One request, checked: its words, and who decided.
async fn request(client: &Client, looping: bool, loops: bool, number: u64) -> Asked {
    let prompt = format!("[{number}]{}", sluice_sim::words(number, 32));
    let ask = Ask::completion(&prompt, 8);
    let (ask, source) = if loops { (ask.header("x-mood", "loop"), "fault") } else { (ask, "policy") };
    let started = Instant::now();
    let failed = match client.ask(&ask).await {
        Err(error) => Some(error.to_string()),
        Ok(reply) => ask.expected().differs_from(&reply).or_else(|| {
            let decided = reply.decision.map(|decision| decision.source);
            (decided.as_deref() != Some(source)).then(|| format!("decided by {decided:?}, not by {source}"))
        }),
    };
    Asked { looping, loops, took: started.elapsed(), failed }
}

/// Prints the figures; says whether all is well.
async fn report(asked: &[Asked], fleet: &Fleet) -> anyhow::Result<bool> {
    let times = |wanted: &dyn Fn(&Asked) -> bool| -> Vec<Duration> {
        asked.iter().filter(|asked| asked.failed.is_none() && wanted(asked)).map(|asked| asked.took).collect()
    };
    let (without, beside) = (times(&|asked| !asked.looping), times(&|asked| asked.looping && !asked.loops));
    let looped = times(&|asked| asked.loops);
    let mut table = Table::new(&["requests", "count", "p50 ms", "p99 ms", "max ms"]);
    for (what, times) in [("without loops", &without), ("beside loops", &beside), ("that loop", &looped)] {
        let ms = |share| quantile_ms(times, share).map_or("-".to_owned(), |ms| format!("{ms:.1}"));
        table.row([what.to_owned(), times.len().to_string(), ms(0.5), ms(0.99), ms(1.0)]);
    }
    println!("\n{table}");
    let failures: Vec<_> = asked.iter().filter_map(|asked| asked.failed.as_ref()).collect();
    for why in failures.iter().take(5) {
        println!("failed: {why}");
    }
    let put_aside = fleet.host.metrics().await?.sum("sluice_policy_put_aside_total", &[]);
    println!("{} requests failed, the policy was put aside {put_aside:.0} times", failures.len());
    let all_well = failures.is_empty() && put_aside == 0.0;
    let target = format!("p99 of others at most {TARGET_MS:.0} ms more");
    let Some((without, beside)) = quantile_ms(&without, 0.99).zip(quantile_ms(&beside, 0.99)) else {
        println!("{}", budget::not_run("policy.loops", &target));
        return Ok(false);
    };
    let is_met = all_well && beside <= without + TARGET_MS;
    println!("{}", budget::line("policy.loops", &target, &format!("{:+.1} ms", beside - without), is_met));
    Ok(is_met)
}
