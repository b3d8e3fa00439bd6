//! `swaps`: does swapping policies under load lose requests, and how soon does a dropped file decide?
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Parser;
use sha2::{Digest, Sha256};
use sluice_harness::budget;
use sluice_harness::process::stop_signal;
use sluice_harness::quantiles::quantile_ms;
use sluice_harness::table::Table;
use sluice_harness::{Ask, Client, Fleet, FleetPlan, PolicyFile, host};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Name of the file that is dropped over and over.
const POLICY: &str = "active";

/// Between two looks at what is in force: the resolution of the drop-to-live times.
const LOOK_EVERY: Duration = Duration::from_millis(4);

/// Requests under way; an open loop that outruns the host by this many is a failed run.
const IN_FLIGHT_AT_MOST: usize = 4_096;

/// After the last drop: until it must be live.
const LAST_LIVE_WITHIN: Duration = Duration::from_secs(2);

/// Time from a file's dropping to its first decision, p99.
const DROP_TO_LIVE_TARGET_MS: f64 = 250.0;

/// Sends requests at a fixed rate while two policies are dropped over each other, and checks every answer.
///
/// Requests are sent on schedule whether or not earlier ones are answered. Each decision must have been taken by a
/// policy set that was in force at some moment between the request's sending and its answer.
///
/// Ends with 0 only if no request failed and every file came to decide.
#[derive(Debug, Parser)]
#[command(name = "swaps")]
struct Options {
    /// How long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Requests per second.
    #[arg(long, default_value_t = 200)]
    rate: u64,
    /// Between two drops, in milliseconds.
    #[arg(long, default_value_t = 100)]
    every_ms: u64,
}

/// What is known of the policies in force and of drops that are not live yet.
#[derive(Debug, Default)]
struct Swaps {
    /// The highest generation that was seen.
    generation: AtomicU64,
    pending: Mutex<Vec<(String, Instant)>>,
    live_after: Mutex<Vec<Duration>>,
    dropped: AtomicU64,
}

/// How one request ended.
#[derive(Debug)]
enum End {
    Good(Duration),
    Failed(String),
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let ended = tokio::select! {
        ended = bench(&options) => ended,
        () = stop_signal() => Err(anyhow::anyhow!("stopped before the end")),
    };
    match ended {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn bench(options: &Options) -> anyhow::Result<usize> {
    println!(
        "{} requests/s for {} s through a host and two engine emulators, a policy dropped every {} ms",
        options.rate, options.seconds, options.every_ms
    );
    let files = [PolicyFile::policy(POLICY, "round-robin")?, PolicyFile::policy(POLICY, "least-loaded")?];
    let fleet = FleetPlan::pull(1, 1).decided_by(files[0].clone()).start().await?;
    let swaps = Arc::new(Swaps::default());
    swaps.generation.store(fleet.host.policies().await?.generation, Ordering::SeqCst);

    let mut watching = JoinSet::new();
    watching.spawn(watch(fleet.host.admin().clone(), swaps.clone()));
    let (ends, dropping) =
        tokio::join!(load(&fleet, &swaps, options), drops(&fleet, &swaps, &files, options));
    dropping?;
    let _ = sluice_harness::until("the last drop to be live", LAST_LIVE_WITHIN, async || {
        swaps.pending.lock().unwrap_or_else(PoisonError::into_inner).is_empty().then_some(())
    })
    .await;
    Ok(report(&ends, &swaps))
}

/// Sends on schedule.
async fn load(fleet: &Fleet, swaps: &Arc<Swaps>, options: &Options) -> Vec<End> {
    let mut ticks = interval(Duration::from_secs(1) / u32::try_from(options.rate.max(1)).unwrap_or(u32::MAX));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut requests = JoinSet::new();
    let mut ends = Vec::new();
    for number in 0..options.rate * options.seconds {
        let scheduled = ticks.tick().await;
        while let Some(Ok(end)) = requests.try_join_next() {
            ends.push(end);
        }
        if requests.len() >= IN_FLIGHT_AT_MOST {
            ends.push(End::Failed(format!("{IN_FLIGHT_AT_MOST} requests under way")));
            continue;
        }
        let (client, admin, swaps) = (fleet.client().clone(), fleet.host.admin().clone(), swaps.clone());
        requests.spawn(async move { request(&client, &admin, &swaps, number, scheduled).await });
    }
    while let Some(end) = requests.join_next().await {
        ends.push(end.unwrap_or_else(|error| End::Failed(error.to_string())));
    }
    ends
}

/// One request, checked: the answer's words, and that its policy set was in force meanwhile.
async fn request(client: &Client, admin: &Client, swaps: &Swaps, number: u64, scheduled: Instant) -> End {
    let prompt = format!("[{number}]{}", sluice_sim::words(number, 32));
    let ask = if number.is_multiple_of(2) { Ask::completion(&prompt, 8) } else { Ask::question(&prompt, 8) };
    let ask = if number % 4 < 2 { ask.streamed() } else { ask };
    let before = swaps.generation.load(Ordering::SeqCst);
    let reply = match client.ask(&ask).await {
        Ok(reply) => reply,
        Err(error) => return End::Failed(error.to_string()),
    };
    let took = scheduled.elapsed();
    let after = match host::policies(admin).await {
        Ok(policies) => policies.generation,
        Err(error) => return End::Failed(error.to_string()),
    };
    swaps.generation.fetch_max(after, Ordering::SeqCst);
    if let Some(wrong) = ask.expected().differs_from(&reply) {
        return End::Failed(wrong);
    }
    match reply.decision {
        Some(decision) if decision.source != "policy" => {
            End::Failed(format!("decided by {}", decision.source))
        }
        Some(decision) if !(before..=after).contains(&decision.generation) => End::Failed(format!(
            "decided by generation {}, in force were {before} to {after}",
            decision.generation
        )),
        Some(_) => End::Good(took),
        None => End::Failed("the answer tells no decision".into()),
    }
}

/// Drops the two policies in turn. Each file is new to the host: a mark in it makes its digest unique.
async fn drops(
    fleet: &Fleet,
    swaps: &Swaps,
    files: &[PolicyFile; 2],
    options: &Options,
) -> anyhow::Result<()> {
    let mut ticks = interval(Duration::from_millis(options.every_ms.max(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ends = Instant::now() + Duration::from_secs(options.seconds);
    let mut mark = 0_u32;
    while ticks.tick().await < ends {
        mark += 1;
        let file = files[mark as usize % files.len()].clone().marked(mark);
        let digest = hexadecimal(&Sha256::digest(&file.wasm));
        swaps.pending.lock().unwrap_or_else(PoisonError::into_inner).push((digest, Instant::now()));
        fleet.host.drop_policy(&file)?;
        swaps.dropped.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

/// Looks at what is in force, over and over. A drop that was overtaken by a later one counts until that one is live.
async fn watch(admin: Client, swaps: Arc<Swaps>) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Ok(policies) = host::policies(&admin).await else { continue };
        swaps.generation.fetch_max(policies.generation, Ordering::SeqCst);
        let digest = policies.named(POLICY).and_then(|policy| policy.digest.clone()).unwrap_or_default();
        let mut pending = swaps.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = pending.iter().position(|(other, _)| *other == digest) {
            let live = pending.drain(..=last).map(|(_, dropped)| dropped.elapsed());
            swaps.live_after.lock().unwrap_or_else(PoisonError::into_inner).extend(live);
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Prints the figures; returns how many requests failed.
fn report(ends: &[End], swaps: &Swaps) -> usize {
    let times: Vec<_> =
        ends.iter().filter_map(|end| if let End::Good(took) = end { Some(*took) } else { None }).collect();
    let failures: Vec<_> =
        ends.iter().filter_map(|end| if let End::Failed(why) = end { Some(why) } else { None }).collect();
    let live_after = swaps.live_after.lock().unwrap_or_else(PoisonError::into_inner);
    let never_live = swaps.pending.lock().unwrap_or_else(PoisonError::into_inner).len();
    let mut table = Table::new(&["what", "count", "p50 ms", "p99 ms", "max ms"]);
    for (what, times) in [("requests", &times), ("drop to live", &*live_after)] {
        let ms = |share| quantile_ms(times, share).map_or("-".to_owned(), |ms| format!("{ms:.1}"));
        table.row([what.to_owned(), times.len().to_string(), ms(0.5), ms(0.99), ms(1.0)]);
    }
    println!("\n{table}");
    println!("{} files dropped, {never_live} of them never live", swaps.dropped.load(Ordering::SeqCst));
    for why in failures.iter().take(5) {
        println!("failed: {why}");
    }
    let p99_ms = if never_live == 0 { quantile_ms(&live_after, 0.99) } else { None };
    let (shown, is_met) = match p99_ms {
        Some(ms) => (format!("{ms:.1} ms"), ms <= DROP_TO_LIVE_TARGET_MS),
        None => ("never".to_owned(), false),
    };
    let target = format!("{DROP_TO_LIVE_TARGET_MS:.0} ms p99");
    println!("{}", budget::line("policy.drop_to_live", &target, &shown, is_met));
    let failed = failures.len().to_string();
    println!("{}", budget::line("policy.swap_failures", "0", &failed, failures.is_empty()));
    failures.len() + never_live
}
