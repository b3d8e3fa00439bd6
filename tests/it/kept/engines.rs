//! The same where engines keep turns by themselves: nothing but this host's proof stands between a rewritten history and a
//! wrong answer.

use sluice_harness::{Endpoint, Fleet, FleetPlan};

use super::rewritten_histories_get_what_is_still_true;
use super::talk::{Events, Taken, Talk, comes, keeping_themselves, nothing_left, nothing_left_when_drained};
use crate::right;

/// Of kept turns alone: that of 0.32 tells nothing in streams.
fn taken(wire: &str) -> &'static [Taken] {
    match wire {
        "0.32" => &[Taken::Whole],
        _ => &[Taken::Whole, Taken::Streamed, Taken::StreamedWithoutUsage],
    }
}

async fn missed(fleet: &Fleet, reason: &str) -> f64 {
    fleet.host.metrics().await.unwrap().sum("sluice_kept_turn_misses_total", &[("reason", reason)])
}

pub async fn fetched(fleet: &Fleet) -> f64 {
    let mut tokens = 0.0;
    for name in fleet.names().iter().filter(|name| name.starts_with("prefill")) {
        tokens += fleet.worker(name).prompt_tokens("external_kv_transfer").await.unwrap();
    }
    tokens
}

#[tokio::test]
async fn each_turn_begins_with_what_the_last_one_left() {
    for wire in ["0.32", "0.33"] {
        let fleet = keeping_themselves(1, 1, wire, "").start().await.unwrap();
        let (mut number, mut reused) = (0, 0);
        for endpoint in [Endpoint::Chat, Endpoint::Completions] {
            for taken in taken(wire) {
                number += 1;
                let mut talk = Talk::new(endpoint, &format!("c-{number}")).taken(*taken);
                let mut before = Vec::new();
                for turn in 0..3 {
                    talk.say(100 * number + turn, 40);
                    let told = talk.turn(&fleet).await;
                    let expected = comes(&before, &told.prompt);
                    let what = format!("{wire} {endpoint:?} {taken:?} turn {turn}");
                    assert_eq!(told.reused, expected, "{what}: of {} held", before.len());
                    assert!(turn == 0 || expected > 40, "{what}");
                    let events = &told.reply.events;
                    assert!(events.iter().all(|event| !event.contains("token_ids\":[")), "{what}");
                    reused += expected;
                    before = told.held;
                }
            }
        }
        assert_eq!(fetched(&fleet).await, reused as f64, "{wire}: prefill read as much");
        let events = Events::of(&fleet).await;
        let number = number as f64;
        assert_eq!((events.kept, events.taken), (3.0 * number, 2.0 * number), "{wire}");
        let fallbacks = fleet.host.metrics().await.unwrap().sum("sluice_fallbacks_total", &[]);
        assert_eq!(fallbacks, 0.0, "{wire}");
        nothing_left_when_drained(&fleet).await;
    }
}

/// Where the history is still what it was, it comes; from there on it is computed.
#[tokio::test]
async fn a_rewritten_history_gets_what_is_still_true() {
    for wire in ["0.32", "0.33"] {
        let fleet = keeping_themselves(1, 1, wire, "").start().await.unwrap();
        rewritten_histories_get_what_is_still_true(&fleet, "pull").await;
        nothing_left_when_drained(&fleet).await;
    }
}

/// Two turns of one conversation at once: both are right, and only one has what was kept; then either goes on with its own.
#[tokio::test]
async fn two_turns_at_once_are_two_branches() {
    // So slow that neither ends before the other has begun.
    let plan =
        keeping_themselves(2, 2, "0.33", "").engines("decode", "--time-scale 1 --decode-step-base-ms 100");
    let fleet = plan.start().await.unwrap();
    let mut talk = Talk::new(Endpoint::Chat, "c");
    talk.say(1, 300);
    let held = talk.turn(&fleet).await.held;
    let before = Events::of(&fleet).await;
    let (mut one, mut other) = (talk.clone(), talk);
    one.say(2, 20);
    other.say(3, 20);
    let asks = (one.ask(), other.ask());
    let (first, second) = tokio::join!(right(fleet.client(), &asks.0), right(fleet.client(), &asks.1));
    let after = Events::of(&fleet).await;
    assert_eq!((after.taken - before.taken, after.kept - before.kept), (1.0, 2.0), "{after:?}");
    let came = [&asks.0, &asks.1].map(|ask| comes(&held, &ask.prompt_tokens()) as f64);
    assert!(came.contains(&(after.reused - before.reused)), "{after:?}");
    for (talk, reply) in [(&mut one, first), (&mut other, second)] {
        let mut held = talk.ask().prompt_tokens();
        held.extend(talk.ask().answer_tokens());
        held.pop();
        talk.answered(&reply.text);
        talk.say(4, 20);
        let told = talk.turn(&fleet).await;
        assert_eq!(told.reused, comes(&held, &told.prompt));
        assert!(told.reused > 300);
    }
    nothing_left_when_drained(&fleet).await;
}

/// What nobody is to use is let go at once: engines would keep it for minutes.
#[tokio::test]
async fn what_is_not_kept_is_let_go() {
    for (wire, settings, label) in
        [("0.33", "ttl_ms = 0", ""), ("0.32", "ttl_ms = 0", ""), ("0.33", "", "no")]
    {
        let fleet = keeping_themselves(1, 1, wire, settings).start().await.unwrap();
        for (number, name) in ["named", ""].into_iter().enumerate() {
            let mut talk = Talk::new(Endpoint::Chat, name).header("x-keep", label);
            talk.say(number as u64, 50);
            talk.turn(&fleet).await;
        }
        nothing_left(&fleet).await;
        let events = Events::of(&fleet).await;
        assert_eq!((events.kept, events.unreleased, events.not_kept), (0.0, 0.0, 2.0), "{wire} {settings}");
    }
}

/// With less to save than is worth fetching it is computed, and let go.
#[tokio::test]
async fn what_is_not_worth_fetching_is_withheld() {
    let fleet = keeping_themselves(1, 1, "0.32", "recompute_below_tokens = 100_000").start().await.unwrap();
    let mut talk = Talk::new(Endpoint::Completions, "c");
    for turn in 0..2 {
        talk.say(turn, 100);
        assert_eq!(talk.turn(&fleet).await.reused, 0);
    }
    let events = Events::of(&fleet).await;
    assert_eq!((events.taken, events.withheld, events.kept), (0.0, 1.0, 2.0));
    assert_eq!(fetched(&fleet).await, 0.0);
    nothing_left_when_drained(&fleet).await;
}

/// Streams of 0.32 tell nothing: no turn is kept of them, which is counted and said, and answers are right.
#[tokio::test]
async fn a_stream_that_tells_nothing_is_not_kept() {
    let fleet = keeping_themselves(1, 1, "0.32", "")
        .engines("decode", "--decoder-ttl-ms 1500")
        .start()
        .await
        .unwrap();
    let mut talk = Talk::new(Endpoint::Chat, "c").taken(Taken::Streamed);
    for turn in 0..2 {
        talk.say(turn, 50);
        assert_eq!(talk.turn(&fleet).await.reused, 0);
    }
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_fallbacks_total", &[("reason", "turn_untold")]), 2.0);
    // Nobody can let it go: it ends with the engine's own time.
    nothing_left(&fleet).await;
}

/// A restarted decode engine has none of what its former life kept: nobody asks it for that, or whoever does is refused and the prompt
/// is computed.
#[tokio::test]
async fn what_went_with_its_engine_is_not_used() {
    for is_seen in [true, false] {
        let mut fleet = keeping_themselves(1, 1, "0.33", "").start().await.unwrap();
        let mut talk = Talk::new(Endpoint::Chat, "c");
        talk.say(1, 100);
        talk.turn(&fleet).await;
        if is_seen {
            fleet.worker_mut("decode-0").process().kill().await.unwrap();
            let decode = [("worker", "decode-0")];
            fleet.host.until_metric("sluice_worker_up", &decode, |up| up == 0.0, crate::SOON).await.unwrap();
        }
        fleet.restart("decode-0").await.unwrap();
        fleet.host.until_ready().await.unwrap();
        if is_seen {
            let lost = [("event", "lost")];
            let all = |count| count == 1.0;
            fleet.host.until_metric("sluice_kept_turns_total", &lost, all, crate::SOON).await.unwrap();
        }
        talk.say(2, 20);
        let told = talk.turn(&fleet).await;
        assert_eq!(told.reused, 0);
        talk.say(3, 20);
        let next = talk.turn(&fleet).await;
        assert_eq!(next.reused, comes(&told.held, &next.prompt), "{is_seen}");
        nothing_left_when_drained(&fleet).await;
    }
}

/// Turn 2 before, at and after the end of the engine's own time: never a read of blocks that may be another's.
#[tokio::test]
async fn a_turn_is_used_only_well_before_its_engine_lets_it_go() {
    // Usable for 2 s: the time less what prefill engines decline, a margin of 1 s and the time to connect.
    let plan = keeping_themselves(1, 1, "0.33", "").pool("decoder_ttl_ms = 10_000\n");
    let mut plan: FleetPlan = plan.engines("decode", "--decoder-ttl-ms 10000");
    plan.host.server.push_str("connect_timeout_ms = 2_000\n");
    let fleet = plan.start().await.unwrap();
    let mut talk = Talk::new(Endpoint::Chat, "c");
    talk.say(1, 100);
    let held = talk.turn(&fleet).await.held;
    talk.say(2, 20);
    let told = talk.turn(&fleet).await;
    assert_eq!(told.reused, comes(&held, &told.prompt));
    let expired = [("event", "expired")];
    fleet
        .host
        .until_metric("sluice_kept_turns_total", &expired, |count| count == 1.0, crate::SOON)
        .await
        .unwrap();
    talk.say(3, 20);
    assert_eq!(talk.turn(&fleet).await.reused, 0);
    assert_eq!(missed(&fleet, "nothing-held").await, 0.0);
    nothing_left_when_drained(&fleet).await;
    // Nobody was asked for what it would have refused, and what expired here was let go, not left to its engine's time.
    assert_eq!(fleet.host.metrics().await.unwrap().sum("sluice_leg_failures_total", &[]), 0.0);
    assert_eq!(Events::of(&fleet).await.unreleased, 0.0);
}

/// Whoever ends a conversation has its engine let go of it, at once: with its last turn, by a request, or as an operator.
#[tokio::test]
async fn what_is_ended_is_let_go_by_its_engine() {
    for wire in ["0.32", "0.33"] {
        let fleet = keeping_themselves(1, 1, wire, "").start().await.unwrap();
        let mut ended = 0.0;
        for how in ["last turn", "client", "operator", "operator, all of a tenant"] {
            let mut talk = Talk::new(Endpoint::Chat, "c");
            talk.say(1, 100);
            let held = talk.turn(&fleet).await.held;
            assert_eq!(Events::of(&fleet).await.live(), 1.0, "{how}");
            let delete = async |client: &sluice_harness::Client, path: &str| {
                client.request(hyper::Method::DELETE, path, bytes::Bytes::new(), &[]).await.unwrap().status
            };
            match how {
                "last turn" => {
                    talk.say(2, 20);
                    let last = talk.clone().header("x-sluice-session", "end").turn(&fleet).await;
                    assert_eq!(last.reused, comes(&held, &last.prompt));
                }
                "client" => assert_eq!(delete(fleet.client(), "/v1/sessions/c").await, 204),
                "operator" => assert_eq!(delete(fleet.host.admin(), "/admin/sessions/c").await, 200),
                _ => {
                    let listing = fleet.host.admin().get("/admin/sessions").await.unwrap().json();
                    let tenant = listing["listed"][0]["tenant"].as_str().unwrap().to_owned();
                    assert_eq!(listing["listed"][0]["held"]["branches"], 1, "{listing}");
                    let path = format!("/admin/sessions?tenant={tenant}");
                    assert_eq!(delete(fleet.host.admin(), &path).await, 200);
                }
            }
            nothing_left(&fleet).await;
            ended += 1.0;
            let events = Events::of(&fleet).await;
            assert_eq!((events.released + events.taken, events.unreleased), (ended, 0.0), "{how} {events:?}");
        }
    }
}

/// Clients that name no conversation are known by their history.
#[tokio::test]
async fn a_conversation_without_a_name_has_its_turns() {
    for wire in ["0.32", "0.33"] {
        let fleet = keeping_themselves(2, 2, wire, "").start().await.unwrap();
        let mut talks: Vec<_> = (0..3).map(|_| Talk::new(Endpoint::Chat, "")).collect();
        let mut held = vec![Vec::new(); 3];
        for turn in 0..3 {
            for (number, talk) in talks.iter_mut().enumerate() {
                talk.say(10 * number as u64 + turn, 60);
                let told = talk.turn(&fleet).await;
                assert_eq!(told.reused, comes(&held[number], &told.prompt), "{wire} {number} {turn}");
                held[number] = told.held;
            }
        }
        nothing_left_when_drained(&fleet).await;
    }
}
