//! Turns that decode engines keep for the next one: what comes of them is right, as much as can be, and leaves nothing.

mod deaths;
mod decided;
mod endings;
mod ends;
mod engines;
mod lasting;
mod otherwise;
mod talk;
mod unfetched;

use sluice_harness::ask::message;
use sluice_harness::{Endpoint, Fleet};
use sluice_sim::words;

use self::talk::{Events, Taken, Talk, comes, keeping, nothing_left, nothing_left_when_drained};
use crate::{SOON, right};

const TAKEN: [Taken; 3] = [Taken::Whole, Taken::Streamed, Taken::StreamedWithoutUsage];

/// Each turn gets all that the turn before it left, however it is asked and however KV moves; clients are told of it as
/// of any tokens that were not computed.
#[tokio::test]
async fn each_turn_begins_with_what_the_last_one_left() {
    let fleet = keeping(1, 1, "").start().await.unwrap();
    let mut number = 0;
    let mut reused = 0;
    for how in ["pull", "push", "late"] {
        for endpoint in [Endpoint::Chat, Endpoint::Completions] {
            for taken in TAKEN {
                number += 1;
                let talk = Talk::new(endpoint, &format!("c-{number}")).taken(taken);
                let mut talk = talk.header("x-transfer", how);
                let mut before = Vec::new();
                for turn in 0..3 {
                    talk.say(100 * number + turn, 40);
                    let told = talk.turn(&fleet).await;
                    let expected = comes(&before, &told.prompt);
                    let what = format!("{how} {endpoint:?} {taken:?} turn {turn}");
                    assert_eq!(told.reused, expected, "{what}: of {} held", before.len());
                    assert!(turn == 0 || expected > 40, "{what}");
                    if taken != Taken::StreamedWithoutUsage {
                        assert_eq!(told.reply.cached_tokens, expected as u64, "{what}");
                    }
                    reused += expected;
                    before = told.held;
                }
            }
        }
    }
    let events = Events::of(&fleet).await;
    let number = number as f64;
    let expected = Events { kept: 3.0 * number, taken: 2.0 * number, ..Events::default() };
    assert_eq!(events, Events { reused: reused as f64, ..expected });
    let fallbacks = fleet.host.metrics().await.unwrap().sum("sluice_fallbacks_total", &[]);
    assert_eq!(fallbacks, 0.0);
    let brought = fleet.worker("prefill-0").prompt_tokens("external_kv_transfer").await.unwrap();
    assert_eq!(brought, reused as f64);
    nothing_left_when_drained(&fleet).await;
    assert_eq!(Events::of(&fleet).await.drained, number);
}

/// What a client may have done to its history before it goes on.
type Edit = fn(&mut Talk);

const EDITS: [(&str, Edit); 7] = [
    ("goes on", |_| {}),
    ("edited late", |talk| talk.messages[3] = message("user", &words(900, 30))),
    ("edited early", |talk| talk.messages[1] = message("user", &words(901, 60))),
    ("answer edited", |talk| talk.messages[4] = message("assistant", &words(903, 20))),
    ("shortened", |talk| talk.messages.truncate(2)),
    ("another system prompt", |talk| talk.messages[0] = message("system", "be long ")),
    ("another conversation", |talk| talk.messages = vec![message("user", &words(902, 80))]),
];

/// Each edit in a conversation of its own, which says `how` it is answered: where its history is still what it was, it comes.
async fn rewritten_histories_get_what_is_still_true(fleet: &Fleet, how: &str) {
    let mut number = 0;
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        for (what, edit) in EDITS {
            number += 1;
            let talk = Talk::new(endpoint, &format!("e-{how}-{number}"));
            let mut talk = talk.header("x-transfer", how);
            let mut held = Vec::new();
            for turn in 0..2 {
                talk.say(10 * number + turn, 60);
                held = talk.turn(fleet).await.held;
            }
            edit(&mut talk);
            talk.say(10 * number + 2, 30);
            let told = talk.turn(fleet).await;
            assert_eq!(told.reused, comes(&held, &told.prompt), "{what} {how} {endpoint:?}");
            let is_all = told.reused + talk::BLOCK_TOKENS > held.len();
            assert_eq!(is_all, what == "goes on", "{what} {how} {endpoint:?}: {}", told.reused);
        }
    }
}

/// Where the history is still what it was, it comes; from there on it is computed.
#[tokio::test]
async fn a_rewritten_history_gets_what_is_still_true() {
    let fleet = keeping(1, 1, "").start().await.unwrap();
    for how in ["pull", "push"] {
        rewritten_histories_get_what_is_still_true(&fleet, how).await;
    }
    nothing_left_when_drained(&fleet).await;
}

/// Two turns of one conversation at once: both are right, and only one has what was kept.
#[tokio::test]
async fn two_turns_at_once_have_one_hold() {
    let fleet = keeping(2, 2, "").start().await.unwrap();
    for how in ["pull", "push"] {
        let mut talk = Talk::new(Endpoint::Chat, how).header("x-transfer", how);
        talk.say(1, 300);
        let held = talk.turn(&fleet).await.held;
        let before = Events::of(&fleet).await;
        let (mut one, mut other) = (talk.clone(), talk);
        one.say(2, 20);
        other.say(3, 20);
        let (one, other) = (one.ask(), other.ask());
        tokio::join!(right(fleet.client(), &one), right(fleet.client(), &other));
        let after = Events::of(&fleet).await;
        assert_eq!(after.taken - before.taken, 1.0, "{how}");
        let came = [&one, &other].map(|ask| comes(&held, &ask.prompt_tokens()) as f64);
        assert!(came.contains(&(after.reused - before.reused)), "{how}: {after:?}");
        // Either may be gone on with.
        assert_eq!((after.kept - before.kept, after.superseded - before.superseded), (2.0, 0.0), "{how}");
    }
    nothing_left_when_drained(&fleet).await;
}

/// An engine that serves alone keeps its turn as well, and what was kept before is of no use any more.
#[tokio::test]
async fn a_turn_that_was_not_split_is_kept_too() {
    let mut plan = keeping(1, 1, "");
    plan.can_prefill = true;
    let fleet = plan.start().await.unwrap();
    let mut talk = Talk::new(Endpoint::Chat, "a").header("x-transfer", "alone");
    talk.say(1, 100);
    let alone = talk.turn(&fleet).await;
    assert_eq!(alone.reply.decision.unwrap().placement, "unified");
    talk = talk.header("x-transfer", "pull");
    talk.say(2, 20);
    let split = talk.turn(&fleet).await;
    assert_eq!(split.reused, comes(&alone.held, &split.prompt));
    talk = talk.header("x-transfer", "alone");
    talk.say(3, 20);
    talk.turn(&fleet).await;
    let events = Events::of(&fleet).await;
    assert_eq!((events.kept, events.taken, events.superseded), (3.0, 1.0, 1.0));
    nothing_left_when_drained(&fleet).await;
}

/// What is less than is worth moving is computed, and let go.
#[tokio::test]
async fn what_is_not_worth_moving_is_computed() {
    let fleet = keeping(1, 1, "recompute_below_tokens = 100_000").start().await.unwrap();
    for how in ["pull", "push"] {
        let mut talk = Talk::new(Endpoint::Completions, how).header("x-transfer", how);
        for turn in 0..2 {
            talk.say(turn, 100);
            assert_eq!(talk.turn(&fleet).await.reused, 0, "{how}");
        }
    }
    let events = Events::of(&fleet).await;
    assert_eq!((events.taken, events.reused), (2.0, 0.0));
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_kv_transfers_failed_total", &[]), 0.0);
    nothing_left_when_drained(&fleet).await;
}

/// The same name of a conversation, of somebody else, leads to nothing, and takes nothing away.
#[tokio::test]
async fn a_kept_turn_is_its_tenants_own() {
    let fleet = keeping(1, 1, "").start().await.unwrap();
    let of = |key: &str| Talk::new(Endpoint::Chat, "c").header("authorization", key);
    let mut mine = of("Bearer mine");
    mine.say(1, 100);
    let held = mine.turn(&fleet).await.held;
    let mut theirs = Talk { headers: of("Bearer theirs").headers, ..mine.clone() };
    theirs.say(2, 20);
    assert_eq!(theirs.turn(&fleet).await.reused, 0);
    let mut elsewhere = Talk { endpoint: Endpoint::Completions, ..mine.clone() };
    elsewhere.say(2, 20);
    assert_eq!(elsewhere.turn(&fleet).await.reused, 0);
    mine.say(2, 20);
    let next = mine.turn(&fleet).await;
    assert_eq!(next.reused, comes(&held, &next.prompt));
    assert!(next.reused > 100);
    nothing_left_when_drained(&fleet).await;
}

/// What clients without a name for their conversation do to its history: each turn has all that is still true of the one that
/// it goes on from.
#[tokio::test]
async fn a_conversation_without_a_name_is_found_by_its_history() {
    let fleet = keeping(2, 2, "").start().await.unwrap();
    for (number, how) in (1..).zip(["pull", "push"]) {
        for (endpoint, words) in [(Endpoint::Chat, 40), (Endpoint::Completions, 400)] {
            let what = format!("{how} {endpoint:?}");
            let mut talk = Talk::new(endpoint, "").header("x-transfer", how);
            talk.say(1_000 * number + words as u64, words);
            let first = talk.turn(&fleet).await;
            assert_eq!(first.reused, 0, "{what}");
            // It goes on.
            talk.say(1_000 * number + 1, words);
            let before = talk.clone();
            let second = talk.turn(&fleet).await;
            assert_eq!(second.reused, comes(&first.held, &second.prompt), "{what}");
            // The same is asked again, for another answer.
            let again = before.clone().turn(&fleet).await;
            assert_eq!(again.reused, comes(&second.held, &again.prompt), "{what}: again");
            assert!(
                again.reused + 1 >= again.prompt.len() / talk::BLOCK_TOKENS * talk::BLOCK_TOKENS,
                "{what}"
            );
            // And goes on, while somebody else begins otherwise.
            let mut other = Talk::new(endpoint, "").header("x-transfer", how);
            other.say(1_000 * number + 7, words);
            assert_eq!(other.turn(&fleet).await.reused, 0, "{what}: another");
            talk.say(1_000 * number + 2, words);
            let third = talk.turn(&fleet).await;
            assert_eq!(third.reused, comes(&again.held, &third.prompt), "{what}: third");
            // An old message is edited: a branch of its own, which begins with what the other had.
            let mut branch = before;
            let edited = branch.messages.len() - 1;
            branch.messages[edited] = message("user", &sluice_sim::words(1_000 * number + 3, words));
            let branched = branch.turn(&fleet).await;
            assert_eq!(branched.reused, comes(&third.held, &branched.prompt), "{what}: branch");
            assert!(branched.reused > 0, "{what}: branch");
            // Both go on, each with its own.
            branch.say(1_000 * number + 4, words);
            let later = branch.turn(&fleet).await;
            assert_eq!(later.reused, comes(&branched.held, &later.prompt), "{what}: the branch goes on");
        }
    }
    nothing_left_when_drained(&fleet).await;
}

/// A tenant's history is no key to what another had.
#[tokio::test]
async fn the_same_history_of_another_tenant_finds_nothing() {
    let fleet = keeping(1, 1, "").start().await.unwrap();
    let of = |key: &str| Talk::new(Endpoint::Chat, "").header("authorization", key);
    let mut mine = of("Bearer mine");
    mine.say(1, 100);
    let held = mine.turn(&fleet).await.held;
    let mut theirs = Talk { headers: of("Bearer theirs").headers, ..mine.clone() };
    theirs.say(2, 20);
    assert_eq!(theirs.turn(&fleet).await.reused, 0);
    mine.say(2, 20);
    let next = mine.turn(&fleet).await;
    assert_eq!(next.reused, comes(&held, &next.prompt));
    nothing_left_when_drained(&fleet).await;
}

/// What is told of gaps when a turn ends: the one before it counts, and a first turn is told of its workload's.
#[tokio::test]
async fn gaps_are_told_when_a_turn_ends() {
    let fleet = keeping(1, 1, "").start().await.unwrap();
    let talk = |id: &str| Talk::new(Endpoint::Chat, id).header("x-keep", "gaps");
    let mut talks = [talk("one"), talk("two")];
    for (number, kept) in [(0, 0.0), (0, 1.0), (1, 2.0)] {
        let talk = &mut talks[number];
        talk.say(1, 20);
        talk.turn(&fleet).await;
        assert_eq!(Events::of(&fleet).await.kept, kept);
    }
    nothing_left_when_drained(&fleet).await;
}

/// Whoever says that nothing comes after a turn has nothing kept of it, nor of those before.
#[tokio::test]
async fn the_last_turn_leaves_nothing() {
    let fleet = keeping(1, 1, "").start().await.unwrap();
    let mut talk = Talk::new(Endpoint::Chat, "c");
    talk.say(1, 100);
    let held = talk.turn(&fleet).await.held;
    talk.say(2, 20);
    let last = talk.clone().header("x-sluice-session", "end").turn(&fleet).await;
    assert_eq!(last.reused, comes(&held, &last.prompt));
    nothing_left(&fleet).await;
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_sessions", &[]), 0.0);
    assert_eq!(talk.turn(&fleet).await.reused, 0);
    // By a request of its own.
    assert_eq!(Events::of(&fleet).await.live(), 1.0);
    let delete = async |id: &str| {
        let path = format!("/v1/sessions/{id}");
        fleet.client().request(hyper::Method::DELETE, &path, bytes::Bytes::new(), &[]).await.unwrap().status
    };
    assert_eq!((delete("c").await, delete("c").await), (204, 404));
    nothing_left(&fleet).await;
    assert_eq!(Events::of(&fleet).await.released, 1.0);
}

async fn cancelled(fleet: &Fleet) {
    let outcome = [("outcome", "cancelled")];
    fleet.host.until_metric("sluice_requests_total", &outcome, |count| count == 1.0, SOON).await.unwrap();
}
