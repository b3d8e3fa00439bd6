//! What engines keep outlives the host that knows of it.

use sluice_harness::{Endpoint, Fleet};

use super::talk::{Events, Talk, comes, keeping_themselves, nothing_left, nothing_left_when_drained};
use crate::SOON;

const SNAPSHOT: &str = "[sessions]\nsnapshot_file = \"sessions.snapshot\"\nsnapshot_interval_ms = 100\n";
const TALKS: u64 = 3;

/// Conversations of a turn each, and what is held of them.
async fn begun() -> (Fleet, Vec<(Talk, Vec<u32>)>) {
    let mut plan = keeping_themselves(1, 1, "0.33", "");
    plan.host.tables = SNAPSHOT.to_owned();
    let fleet = plan.start().await.unwrap();
    let mut talks = Vec::new();
    for number in 0..TALKS {
        let endpoint = if number == 0 { Endpoint::Completions } else { Endpoint::Chat };
        // One of them is known by its history alone.
        let name = if number == 2 { String::new() } else { format!("c-{number}") };
        let mut talk = Talk::new(endpoint, &name);
        talk.say(number, 80);
        let held = talk.turn(&fleet).await.held;
        talks.push((talk, held));
    }
    (fleet, talks)
}

async fn go_on(fleet: &Fleet, talks: Vec<(Talk, Vec<u32>)>, is_there: bool) {
    for (number, (mut talk, held)) in talks.into_iter().enumerate() {
        talk.say(10 + number as u64, 20);
        let told = talk.turn(fleet).await;
        assert_eq!(told.reused, if is_there { comes(&held, &told.prompt) } else { 0 }, "{number}");
    }
}

async fn all_are(fleet: &Fleet, metric: &str, label: (&str, &str)) {
    fleet.host.until_metric(metric, &[label], |count| count == TALKS as f64, SOON).await.unwrap();
}

async fn ends(fleet: &mut Fleet) {
    fleet.host.process().terminate().unwrap();
    assert_eq!(fleet.host.process().ended(SOON).await.unwrap(), Some(0), "{}", fleet.host.log());
}

/// A host that ends in order leaves to the next one what engines keep.
#[tokio::test]
async fn the_next_host_uses_what_engines_keep() {
    let (mut fleet, talks) = begun().await;
    ends(&mut fleet).await;
    let fleet = fleet.host_again().await.unwrap();
    assert_eq!(Events::of(&fleet).await.live(), TALKS as f64);
    go_on(&fleet, talks, true).await;
    nothing_left_when_drained(&fleet).await;
}

/// One that died may have used some of it since it was saved: nothing of it is used again, and engines are told to let it go.
#[tokio::test]
async fn what_a_host_that_died_knew_is_let_go() {
    let (mut fleet, talks) = begun().await;
    let written = [("outcome", "written")];
    let saved = async |wanted: &dyn Fn(f64) -> bool| {
        let name = "sluice_session_snapshots_total";
        fleet.host.until_metric(name, &written, wanted, SOON).await.unwrap()
    };
    let before = saved(&|_| true).await;
    saved(&|count| count >= before + 2.0).await;
    fleet.host.process().kill().await.unwrap();
    let fleet = fleet.host_again().await.unwrap();
    all_are(&fleet, "sluice_holds_not_kept_total", ("reason", "uncertain")).await;
    nothing_left(&fleet).await;
    go_on(&fleet, talks, false).await;
    nothing_left_when_drained(&fleet).await;
}

/// A snapshot that was read is of no use again, be it put back alone or with what is beside it, as files anew or into those that are
/// there: its turns may be somebody else's blocks by now.
#[tokio::test]
async fn a_snapshot_that_is_put_back_gives_no_turns() {
    for (names, anew) in [
        (&["sessions.snapshot"][..], false),
        (&["sessions.snapshot", "sessions.snapshot.lock"], false),
        (&["sessions.snapshot", "sessions.snapshot.lock"], true),
    ] {
        let (mut fleet, talks) = begun().await;
        ends(&mut fleet).await;
        let folder = fleet.host.folder().to_owned();
        let read = |name: &&str| (folder.join(name), std::fs::read(folder.join(name)).unwrap());
        let first: Vec<_> = names.iter().map(read).collect();
        let mut fleet = fleet.host_again().await.unwrap();
        let mut talks = talks.into_iter();
        go_on(&fleet, talks.next().into_iter().collect(), true).await;
        ends(&mut fleet).await;
        for (path, bytes) in first {
            if anew {
                std::fs::remove_file(&path).unwrap();
            }
            std::fs::write(path, bytes).unwrap();
        }
        let fleet = fleet.host_again().await.unwrap();
        all_are(&fleet, "sluice_holds_not_kept_total", ("reason", "uncertain")).await;
        assert!(fleet.host.log_tells("was used before"), "{}", fleet.host.log());
        // What the newer file said is known to nobody any more.
        go_on(&fleet, talks.collect(), false).await;
    }
}

/// An engine that was started anew while no host looked has nothing of it.
#[tokio::test]
async fn what_an_engine_lost_while_no_host_looked_is_not_used() {
    let (mut fleet, talks) = begun().await;
    ends(&mut fleet).await;
    fleet.worker_mut("decode-0").process().kill().await.unwrap();
    fleet.restart("decode-0").await.unwrap();
    let fleet = fleet.host_again().await.unwrap();
    all_are(&fleet, "sluice_kept_turns_total", ("event", "lost")).await;
    go_on(&fleet, talks, false).await;
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_retries_total", &[]), 0.0);
    nothing_left_when_drained(&fleet).await;
}
