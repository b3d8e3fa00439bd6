//! Conversations: the next turn goes where the last one was, and nobody else's ever does.

use sluice_harness::workload::{Conversation, WorkloadPlan};
use sluice_harness::{Ask, FleetPlan, PolicyFile, Reply};
use sluice_sim::words;

use crate::right;

const PLAN: WorkloadPlan = WorkloadPlan {
    conversations: 4,
    turns: 4,
    at_once: 1,
    first_words: 300,
    later_words: 20,
    max_tokens: 8,
    seed: 7,
};

fn workers(reply: &Reply) -> (String, String) {
    let decision = reply.decision.clone().unwrap();
    (decision.prefill, decision.decode)
}

/// The second turn finds the first one's KV: same workers, and the engine says that it had the tokens.
#[tokio::test]
async fn a_conversation_stays_with_its_workers() {
    let adaptive = PolicyFile::policy("adaptive", "adaptive").unwrap();
    let fleet = FleetPlan::pull(2, 2).decided_by(adaptive).start().await.unwrap();
    let mut conversation = Conversation::new(0, &PLAN);
    let mut before: Option<Reply> = None;
    for turn in 0..PLAN.turns {
        let reply = right(fleet.client(), &conversation.ask(&PLAN)).await;
        conversation.answered(&reply.text);
        if let Some(before) = &before {
            assert_eq!(workers(&reply), workers(before), "turn {turn}");
            let whole_blocks = before.prompt_tokens.unwrap() / 16 * 16;
            assert!(
                reply.cached_tokens >= whole_blocks,
                "turn {turn}: {} of {whole_blocks}",
                reply.cached_tokens
            );
        } else {
            assert_eq!(reply.cached_tokens, 0);
        }
        before = Some(reply);
    }
    assert_eq!(fleet.host.metrics().await.unwrap().sum("sluice_sessions", &[]), 1.0);
}

/// One id, two API keys, two models' worth of endpoints: all are sessions of their own.
#[tokio::test]
async fn a_conversation_id_is_its_tenants_own() {
    let fleet = FleetPlan::unified(1).start().await.unwrap();
    let sessions = async || fleet.host.metrics().await.unwrap().sum("sluice_sessions", &[]);
    let ask = |key: &str| {
        Ask::completion(&words(1, 20), 4).header("authorization", key).with("conversation_id", "c-1")
    };
    let mut expected = 0.0;
    for (key, is_new) in [("Bearer mine", true), ("Bearer mine", false), ("Bearer theirs", true)] {
        right(fleet.client(), &ask(key)).await;
        expected += f64::from(u8::from(is_new));
        assert_eq!(sessions().await, expected, "{key}");
    }
    let nobody = Ask::completion(&words(1, 20), 4).with("conversation_id", "c-1");
    right(fleet.client(), &nobody).await;
    assert_eq!(sessions().await, 3.0, "without a key");
    let chat =
        Ask::question("hello", 4).header("authorization", "Bearer mine").with("conversation_id", "c-1");
    right(fleet.client(), &chat).await;
    assert_eq!(sessions().await, 4.0, "another endpoint renders prompts otherwise");
}

/// A stolen id must not lead to the owner's workers: what the thief's first turn sees is no session at all.
#[tokio::test]
async fn a_stolen_conversation_id_finds_nothing() {
    let guest = PolicyFile::guest("session-teller", "session-teller").unwrap();
    let fleet = FleetPlan::unified(1).decided_by(guest).start().await.unwrap();
    let ask = |key: &str| {
        Ask::completion(&words(2, 20), 4).header("authorization", key).with("conversation_id", "c-2")
    };
    for (key, expected) in [
        ("Bearer mine", "no session"),
        ("Bearer mine", "turn 1"),
        ("Bearer theirs", "no session"),
        ("Bearer mine", "turn 2"),
    ] {
        let reply = right(fleet.client(), &ask(key)).await;
        assert_eq!(reply.decision.unwrap().reason, expected, "{key}");
    }
}

/// The header names a conversation as the body does.
#[tokio::test]
async fn headers_name_conversations() {
    let guest = PolicyFile::guest("session-teller", "session-teller").unwrap();
    let fleet = FleetPlan::unified(1).decided_by(guest).start().await.unwrap();
    for (name, expected) in
        [("x-conversation-id", "no session"), ("x-session-id", "turn 1"), ("x-other-id", "no session")]
    {
        let reply = right(fleet.client(), &Ask::completion(&words(3, 20), 4).header(name, "c-3")).await;
        assert_eq!(reply.decision.unwrap().reason, expected, "{name}");
    }
}
