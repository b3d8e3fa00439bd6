//! What policies decide about kept turns.

use super::talk::{Events, Talk, keeping, nothing_left};
use crate::SOON;
use sluice_harness::{Endpoint, Fleet, PolicyFile};

async fn event(fleet: &Fleet, event: &str, count: f64) {
    let labels = [("event", event)];
    fleet.host.until_metric("sluice_kept_turns_total", &labels, |now| now == count, SOON).await.unwrap();
}

async fn fallbacks(fleet: &Fleet, reason: &str) -> f64 {
    fleet.host.metrics().await.unwrap().sum("sluice_fallbacks_total", &[("reason", reason)])
}

/// One turn of a conversation of its own.
async fn one_turn(fleet: &Fleet, talk: Talk) -> Talk {
    let mut talk = talk;
    talk.say(1, 100);
    talk.turn(fleet).await;
    talk
}

#[tokio::test]
async fn what_a_policy_lets_go_is_not_kept() {
    let fleet = keeping(1, 1, "ttl_ms = 0").start().await.unwrap();
    let mut talk = one_turn(&fleet, Talk::new(Endpoint::Chat, "c")).await;
    nothing_left(&fleet).await;
    talk.say(2, 20);
    assert_eq!(talk.turn(&fleet).await.reused, 0);
    nothing_left(&fleet).await;
    assert_eq!(Events::of(&fleet).await, Events::default());
    assert_eq!(fallbacks(&fleet, "kept_turns_full").await, 0.0);
}

/// What is kept ends when its time is over, nobody having asked for it.
#[tokio::test]
async fn a_kept_turn_ends_with_its_time() {
    let fleet = keeping(1, 1, "ttl_ms = 1_200").start().await.unwrap();
    one_turn(&fleet, Talk::new(Endpoint::Chat, "c")).await;
    nothing_left(&fleet).await;
    assert_eq!(Events::of(&fleet).await, Events { kept: 1.0, expired: 1.0, ..Events::default() });
}

/// A lease goes on as long as its policy says, and no longer.
#[tokio::test]
async fn a_lease_goes_on_as_long_as_its_policy_lets_it() {
    let settings = "ttl_ms = 30_000\nheartbeat_ms = 100\nrenewals = 3";
    let fleet = keeping(1, 1, settings).start().await.unwrap();
    let mut talk = one_turn(&fleet, Talk::new(Endpoint::Chat, "c")).await;
    event(&fleet, "released", 1.0).await;
    let expected = Events { kept: 1.0, renewed: 3.0, released: 1.0, ..Events::default() };
    assert_eq!(Events::of(&fleet).await, expected);
    nothing_left(&fleet).await;
    talk.say(2, 20);
    assert_eq!(talk.turn(&fleet).await.reused, 0);
}

/// What a policy keeps in vain costs nothing but what it keeps: its faults are counted, and the turn is let go.
#[tokio::test]
async fn a_policy_that_fails_keeps_nothing() {
    let settings = "ttl_ms = 30_000\nheartbeat_ms = 100\nrenewals = 1_000";
    let fleet = keeping(1, 1, settings).start().await.unwrap();
    one_turn(&fleet, Talk::new(Endpoint::Chat, "a").header("x-keep", "trap")).await;
    nothing_left(&fleet).await;
    assert_eq!((fallbacks(&fleet, "retain_fault").await, Events::of(&fleet).await.kept), (1.0, 0.0));
    one_turn(&fleet, Talk::new(Endpoint::Chat, "b").header("x-keep", "trap-later")).await;
    event(&fleet, "released", 1.0).await;
    nothing_left(&fleet).await;
    assert_eq!(fallbacks(&fleet, "heartbeat_fault").await, 1.0);
}

/// Who is asked about a turn is the policy of today, not the one that kept it.
#[tokio::test]
async fn the_policy_of_today_is_asked() {
    let settings = |renewals: u32| format!("ttl_ms = 30_000\nheartbeat_ms = 100\nrenewals = {renewals}");
    let fleet = keeping(1, 1, &settings(1_000_000)).start().await.unwrap();
    one_turn(&fleet, Talk::new(Endpoint::Chat, "c")).await;
    let labels = [("event", "renewed")];
    let host = &fleet.host;
    host.until_metric("sluice_kept_turns_total", &labels, |count| count >= 2.0, SOON).await.unwrap();
    let generation = host.policies().await.unwrap().generation;
    let policy = PolicyFile::guest("keeps-turns", "keeps-turns").unwrap().settings(&settings(0));
    host.drop_policy(&policy).unwrap();
    host.until_generation_after(generation, SOON).await.unwrap();
    event(&fleet, "released", 1.0).await;
    nothing_left(&fleet).await;
    // A policy that is no more says nothing, and so nothing is kept.
    let again = PolicyFile::guest("keeps-turns", "keeps-turns").unwrap().settings(&settings(1_000_000));
    let generation = host.policies().await.unwrap().generation;
    host.drop_policy(&again).unwrap();
    host.until_generation_after(generation, SOON).await.unwrap();
    one_turn(&fleet, Talk::new(Endpoint::Chat, "d")).await;
    assert_eq!(Events::of(&fleet).await.kept, 2.0);
}
