//! Unified and pull, chats and completions, whole and streamed: the answer is the oracle's.

use sluice_harness::ask::message;
use sluice_harness::{Ask, Fleet, FleetPlan, PolicyFile};
use sluice_sim::words;

use crate::right;

/// Prompt lengths around KV blocks of 16 tokens, and one that takes several steps.
const PROMPT_WORDS: [usize; 5] = [1, 15, 16, 17, 3_000];

/// As the emulator has them unless told otherwise.
const BLOCK_TOKENS: u64 = 16;
const BYTES_PER_TOKEN: u64 = 64;

fn asks(words_in_prompt: usize) -> [Ask; 4] {
    let text = words(words_in_prompt as u64, words_in_prompt);
    let chat = Ask::chat(&[message("system", "be brief"), message("user", &text)], 24);
    let completion = Ask::completion(&text, 24);
    [chat.clone(), completion.clone(), chat.streamed(), completion.streamed()]
}

/// Asks everything; returns the prompt tokens of each answer.
async fn all_right(fleet: &Fleet, placement: &str) -> Vec<u64> {
    let mut prompt_tokens = Vec::new();
    for count in PROMPT_WORDS {
        for ask in asks(count) {
            let reply = right(fleet.client(), &ask).await;
            let decision = reply.decision.unwrap();
            assert_eq!((decision.placement.as_str(), decision.source.as_str()), (placement, "policy"));
            prompt_tokens.push(reply.prompt_tokens.unwrap());
        }
    }
    prompt_tokens
}

#[tokio::test]
async fn one_worker_does_it_all() {
    let adaptive = PolicyFile::policy("adaptive", "adaptive").unwrap();
    let fleet = FleetPlan::unified(2).decided_by(adaptive).start().await.unwrap();
    all_right(&fleet, "unified").await;
    assert_eq!(fleet.bytes_moved().await.unwrap(), 0.0);
}

#[tokio::test]
async fn decode_bound_before_prefill() {
    pull("").await;
}

#[tokio::test]
async fn decode_bound_after_prefill() {
    pull("late_binding = true").await;
}

/// Every prompt token's KV moved from the prefill engine to the decode engine, and none was computed there. Caching is
/// off: a decode engine does not fetch what it has.
async fn pull(settings: &str) {
    let adaptive = PolicyFile::policy("adaptive", "adaptive").unwrap().settings(settings);
    let plan = FleetPlan::pull(1, 1).engines("", "--no-prefix-caching").decided_by(adaptive);
    let fleet = plan.start().await.unwrap();
    let asked = all_right(&fleet, "disaggregated").await;
    let prompt_tokens = asked.iter().sum::<u64>() as f64;
    let decode = fleet.worker("decode-0");
    assert_eq!(decode.prompt_tokens("external_kv_transfer").await.unwrap(), prompt_tokens);
    assert_eq!(decode.prompt_tokens("local_compute").await.unwrap(), 0.0);
    // Whole blocks move.
    let blocks: u64 = asked.iter().map(|tokens| tokens.div_ceil(BLOCK_TOKENS)).sum();
    assert_eq!(decode.bytes_read().await.unwrap(), (blocks * BLOCK_TOKENS * BYTES_PER_TOKEN) as f64);
    assert_eq!(fleet.worker("prefill-0").prompt_tokens("local_compute").await.unwrap(), prompt_tokens);
    let transfers =
        fleet.host.metrics().await.unwrap().sum("sluice_transfers_total", &[("handle", "dispatched")]);
    assert_eq!(transfers as usize, PROMPT_WORDS.len() * 4);
}

/// The proof that the other tests could fail: KV that is not copied gives another answer.
#[tokio::test]
async fn kv_that_is_not_copied_is_noticed() {
    let plan = FleetPlan::pull(1, 1).engines("decode", "--fault-skip-kv-copy");
    let fleet = plan.start().await.unwrap();
    for ask in asks(64) {
        let reply = fleet.client().ask(&ask).await.unwrap();
        assert_eq!(reply.status, 200);
        let wrong = ask.expected().differs_from(&reply).expect("another answer");
        assert!(wrong.starts_with("text is"), "{wrong}");
    }
}

/// A prefill engine that hands nothing over: decode computes the prompt, the answer is right, and it is said.
#[tokio::test]
async fn a_prefill_answer_without_a_handle_is_a_counted_fallback() {
    let fleet = FleetPlan::pull(1, 1).engines("prefill", "--connector none").start().await.unwrap();
    for ask in asks(64) {
        right(fleet.client(), &ask).await;
    }
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_fallbacks_total", &[("reason", "transfer_missing")]), 4.0);
    assert_eq!(metrics.sum("sluice_transfers_total", &[("handle", "absent")]), 4.0);
    assert_eq!(metrics.sum("sluice_transfers_total", &[("handle", "dispatched")]), 0.0);
}

/// Both manners of the wire serve the same.
#[tokio::test]
async fn engines_of_the_next_version_are_served() {
    let fleet = FleetPlan::pull(1, 1).engines("", "--wire 0.33").start().await.unwrap();
    for ask in asks(64) {
        right(fleet.client(), &ask).await;
    }
    assert_eq!(fleet.host.worker("decode-0").await.unwrap()["version"], "0.33.0");
}
