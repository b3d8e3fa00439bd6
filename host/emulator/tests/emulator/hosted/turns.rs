//! KV of a whole turn, kept at decode and brought back to prefill.

use sluice_sim::tokens::tokenize;

use super::*;

/// A first turn whose KV decode holds as transfer 2; its answer.
async fn first_turn(node: &Node) -> Value {
    prefill(node, &prompt(1), 1).await;
    let body = leg(greedy(&prompt(1), 32), Some(hold(2, "turn")), Some(receive(1, "pull")));
    let answer = complete(&node.d, &body).await;
    assert_eq!(tokens_of(&answer), right_tokens(&prompt(1), 32));
    until_link(&node.d, |link| link.holds == 1).await;
    answer
}

/// The next prefill leg, which has the turn brought back and holds its own prompt as transfer 3.
async fn next_prefill(node: &Node, text: &str, held: usize) -> Value {
    let mut back = receive(2, "pull");
    let change = json!({"source": "decode", "direction": "decode-to-prefill", "tokens": held});
    back.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let answer = complete(&node.p, &leg(greedy(text, 1), Some(hold(3, "prompt")), Some(back))).await;
    assert_eq!(tokens_of(&answer), right_tokens(text, 1));
    answer["kv_transfer_params"]["sluice"].clone()
}

/// Prefill must not answer from its own cache.
fn no_cache(config: &mut sluice_emulator::EmulatorConfig) {
    config.prefix_caching = false;
}

#[tokio::test]
async fn a_turn_comes_back_and_goes_on() {
    let node = Node::new(no_cache).await;
    let answer = first_turn(&node).await;
    let tokens = 100 + tokens_of(&answer).len() - 1;
    until(node.d.engine(), |engine| engine.blocks.used == tokens.div_ceil(16)).await;
    let filled = |state: &fake_host::State| {
        state.holds.values().find(|held| held.is_filled).map(|held| held.hold.proofs.len())
    };
    assert_eq!(node.host.until(filled).await, tokens / 16);
    let text = format!("{}{}{}", prompt(1), answer["choices"][0]["text"].as_str().unwrap(), prompt(2));
    let held = next_prefill(&node, &text, tokens).await;
    let proven = tokens / 16 * 16;
    assert_eq!(held["received_tokens"], proven, "whole positions are proven");
    assert_eq!(held["tokens"], tokenize(&text).len());
    assert_eq!(tokens_of(&decode(&node, &text, 3).await), right_tokens(&text, 32));
    node.is_idle().await;
}

#[tokio::test]
async fn a_prompt_that_goes_another_way_gets_what_is_equal() {
    let node = Node::new(no_cache).await;
    let answer = first_turn(&node).await;
    let tokens = 100 + tokens_of(&answer).len() - 1;
    let other = format!("{}{}", sluice_sim::tokens::words(1, 60), prompt(2));
    let held = next_prefill(&node, &other, tokens).await;
    assert_eq!(held["received_tokens"], 48);
    assert_eq!(sources(&node.p).await.2, 48);
    assert_eq!(tokens_of(&decode(&node, &other, 3).await), right_tokens(&other, 32));
    node.is_idle().await;
}

#[tokio::test]
async fn a_prompt_that_has_nothing_in_common_is_computed() {
    let node = Node::new(no_cache).await;
    let answer = first_turn(&node).await;
    let held = next_prefill(&node, &prompt(9), 100 + tokens_of(&answer).len() - 1).await;
    assert_eq!((held["received_tokens"].as_u64(), failed(&node.p).await), (Some(0), 1));
    assert_eq!(tokens_of(&decode(&node, &prompt(9), 3).await), right_tokens(&prompt(9), 32));
}

#[tokio::test]
async fn what_the_cache_has_is_held_with_the_turn() {
    let node = Node::new(|_| {}).await;
    complete(&node.d, &greedy(&prompt(1), 1)).await;
    first_turn(&node).await;
    assert_eq!(sources(&node.d).await, (100, 96, 4));
    // All blocks of the turn, the cached ones too, stay in use.
    let used = node.d.engine().now().blocks.used;
    assert_eq!(until_link(&node.d, |link| link.named_blocks == used).await.holds, 1);
}
