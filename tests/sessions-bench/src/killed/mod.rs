//! A host that is killed among its requests, with its sessions in a snapshot: what the next one knows, and that no answer is wrong.

mod traffic;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sluice_harness::quantiles::quantile_ms;
use sluice_harness::table::Table;
use sluice_harness::{Ask, Fleet, FleetPlan, Host, PolicyFile, budget};
use sluice_sim::words;
use tokio::time::sleep;

use traffic::Traffic;

/// Between snapshots, in milliseconds.
const INTERVAL_MS: u64 = 200;
/// The file's name.
const FILE: &str = "sessions.snapshot";
/// From a host's start to its end.
const LIVES: Duration = Duration::from_millis(1_200);
/// For what must come about; far above what it takes.
const SOON: Duration = Duration::from_secs(20);
/// From the kill until a host is there again, with all of its workers up, at most.
const READY_WITHIN: Duration = Duration::from_secs(2);
/// Sessions that are listed at most.
const LISTED: usize = 1_000;

/// A host's life and its end.
struct End {
    /// Sessions that had ended a turn before the last snapshot was begun.
    saved: usize,
    /// Those of them that the next host knows, with all of these turns.
    back: usize,
    /// Until the next host was ready.
    ready: Duration,
    cut_off: u64,
    /// Tokens that came from kept turns in that life.
    reused: f64,
    /// Kept turns of the snapshot at its start that may have been used since, so that their engines were told to let go.
    let_go: f64,
}

/// Kills so many hosts.
pub async fn run(kills: usize) -> anyhow::Result<()> {
    let mut fleet = start().await?;
    let traffic = Traffic::start(fleet.client());
    let mut ends = Vec::new();
    for number in 1..=kills {
        let end;
        (fleet, end) = kill(fleet, &traffic).await.with_context(|| format!("kill {number}"))?;
        ends.push(end);
    }
    sleep(LIVES).await;
    let counts = traffic.counts();
    drop(traffic);

    let mut table = Table::new(&[
        "kill",
        "let go at its start",
        "tokens reused",
        "saved at its end",
        "back",
        "cut off",
        "ready after, ms",
    ]);
    for (number, end) in (1..).zip(&ends) {
        let End { saved, back, ready, cut_off, reused, let_go } = end;
        let (let_go, reused, ready_ms) = (*let_go as usize, *reused as usize, ready.as_millis() as usize);
        let cells = [number, let_go, reused, *saved, *back, *cut_off as usize, ready_ms];
        table.row(cells.map(|cell: usize| cell.to_string()));
    }
    println!(
        "kill -9 of the host among its requests, with a snapshot each {INTERVAL_MS} ms; 2 prefill and 2 decode emulators in a bidirectional \
         pool.\nClients ask again what was cut off. {} right answers, {} wrong ones, {} failures but for those cut off.\n{table}",
        counts.right, counts.wrong, counts.failed
    );
    let total = |of: fn(&End) -> usize| ends.iter().map(of).sum::<usize>();
    let (saved, back) = (total(|end| end.saved), total(|end| end.back));
    let target = "all sessions of the last snapshot back, 0 wrong answers, 0 failures but those cut off";
    let measured = format!("{back} of {saved} back, {} wrong, {} failures", counts.wrong, counts.failed);
    let is_met = back == saved && saved > 0 && counts.wrong + counts.failed == 0;
    println!("{}", budget::line("sessions.killed", target, &measured, is_met));
    let times: Vec<_> = ends.iter().map(|end| end.ready).collect();
    let quantile = |share| quantile_ms(&times, share).unwrap_or(f64::MAX);
    let target = format!("<= {} ms from the kill to a ready host", READY_WITHIN.as_millis());
    let measured = format!("median {:.0} ms, worst {:.0} ms", quantile(0.5), quantile(1.0));
    let is_met = times.iter().all(|took| *took <= READY_WITHIN);
    println!("{}\n", budget::line("sessions.killed_ready", &target, &measured, is_met));
    refusals(fleet).await
}

async fn start() -> anyhow::Result<Fleet> {
    // Slow enough for many requests to be under way at any time, with room for all turns to be kept.
    let plan = FleetPlan::bidirectional(2, 2)
        .engines("", "--wire 0.33 --no-prefix-caching --time-scale 0.2")
        .engines("decode", "--blocks 32768");
    let policy = PolicyFile::policy("vllm-defaults", "vllm-defaults")?;
    // Engines without prefix caches have nothing of a prompt, which the host takes them to have.
    let mut plan = plan.decided_by(policy.settings("kv_recompute_threshold_tokens = 0"));
    plan.host.tables =
        format!("[sessions]\nsnapshot_file = \"{FILE}\"\nsnapshot_interval_ms = {INTERVAL_MS}\n");
    plan.start().await.context("the fleet does not start")
}

/// Lets a host live for a while, kills it, and starts the next.
async fn kill(mut fleet: Fleet, traffic: &Traffic) -> anyhow::Result<(Fleet, End)> {
    sleep(LIVES).await;
    let saved = traffic.turns();
    until_saved(&fleet.host).await?;
    let cut_off = traffic.counts().cut_off;
    let metrics = fleet.host.metrics().await?;
    let reused = metrics.sum("sluice_reused_tokens_total", &[]);
    let let_go = metrics.sum("sluice_holds_not_kept_total", &[("reason", "uncertain")]);
    traffic.host_goes();
    let began = Instant::now();
    fleet.host.process().kill().await?;
    let fleet = fleet.host_again().await?;
    let ready = began.elapsed();
    let known = known(&fleet.host).await?;
    let is_back = |(id, turns): &(&String, &u64)| known.get(*id).is_some_and(|known| known >= *turns);
    let back = saved.iter().filter(is_back).count();
    traffic.host_is(fleet.client(), known);
    let cut_off = traffic.counts().cut_off - cut_off;
    Ok((fleet, End { saved: saved.len(), back, ready, cut_off, reused, let_go }))
}

/// Waits until all that ended before is in the file: whatever was being written by now, the second one after that has it.
async fn until_saved(host: &Host) -> anyhow::Result<()> {
    let (name, written) = ("sluice_session_snapshots_total", [("outcome", "written")]);
    let before = host.metrics().await?.sum(name, &written);
    host.until_metric(name, &written, |count| count >= before + 2.0, SOON).await?;
    Ok(())
}

/// Conversations that a host knows, with their turns.
async fn known(host: &Host) -> anyhow::Result<BTreeMap<String, u64>> {
    let listing = host.admin().get(&format!("/admin/sessions?limit={LISTED}")).await?.json();
    ensure!(listing["all_listed"] == true, "more than {LISTED} sessions");
    let listed = listing["listed"].as_array().context("no list of sessions")?;
    let sessions = listed
        .iter()
        .filter_map(|session| Some((session["id"].as_str()?.to_owned(), session["turns"].as_u64()?)));
    Ok(sessions.collect())
}

/// What is done to a snapshot's text, and what the host must say of it.
type Harm = (&'static str, fn(&str) -> String, &'static str);

const HARMS: [Harm; 4] = [
    ("cut in half", |text| text[..text.len() / 2].to_owned(), "it was cut off"),
    ("of an older version", |text| text.replacen(":1", ":0", 1), "it is of version 0"),
    ("a figure changed", |text| text.replacen("\"turns\":", "\"turns\":1", 1), "they were changed"),
    ("something else", |_| "hello\n".to_owned(), "it does not begin as a snapshot"),
];

/// Hosts that find a file that they cannot use.
async fn refusals(mut fleet: Fleet) -> anyhow::Result<()> {
    let mut table = Table::new(&["snapshot", "sessions", "answers", "what the host says"]);
    let ask = Ask::completion(&words(7, 100), 8).with("conversation_id", "refused");
    let mut refused = 0;
    for (what, harm, why) in HARMS {
        until_saved(&fleet.host).await?;
        fleet.host.process().kill().await?;
        let path = fleet.host.folder().join(FILE);
        let good = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        fs::write(&path, harm(&good)).with_context(|| format!("write {}", path.display()))?;
        fleet = fleet.host_again().await?;
        let told = fleet.host.admin().get("/admin/sessions").await?.json();
        let said = told["snapshot"]["refused"].as_str().unwrap_or("nothing");
        let said = said.split(';').next().unwrap_or_default().to_owned();
        let reply = fleet.client().ask(&ask).await?;
        let is_right = ask.expected().differs_from(&reply).is_none();
        refused += usize::from(said.contains(why) && is_right && told["sessions"] == 0);
        let answers = if is_right { "right" } else { "wrong" };
        table.row([what.to_owned(), told["sessions"].to_string(), answers.to_owned(), said]);
    }
    println!("{table}");
    let target = format!("{0} of {0} refused with their reason, and the host serves", HARMS.len());
    let measured = format!("{refused} of {}", HARMS.len());
    println!("{}\n", budget::line("sessions.snapshot_refused", &target, &measured, refused == HARMS.len()));
    Ok(())
}
