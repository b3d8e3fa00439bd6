//! KV that comes, by pull and by push.

use sluice_emulator::{EmulatorConfig, Role};
use sluice_sim::tokens::words;

use super::*;

#[tokio::test]
async fn pulled_kv_answers_as_the_oracle_and_all_blocks_come_back() {
    let node = Node::new(|_| {}).await;
    let held = prefill(&node, &prompt(1), 7).await;
    let expect = json!({"sluice": {"version": 1, "transfer": id(7), "tokens": 100, "cached_tokens": 0,
        "received_tokens": 0}});
    assert_eq!(held, expect);
    assert_eq!(until_link(&node.p, |link| link.holds == 1).await.named_blocks, 7);
    let answer = decode(&node, &prompt(1), 7).await;
    assert_eq!(tokens_of(&answer), right_tokens(&prompt(1), 32));
    assert!(answer["kv_transfer_params"].is_null());
    node.is_idle().await;
    assert_eq!((sources(&node.p).await, sources(&node.d).await), ((100, 0, 0), (0, 0, 100)));
    let state = get(&node.d, "/emulator/state").await.json();
    assert_eq!(state["kv_bytes"]["read"], 100 * 64);
    assert_eq!(state["kv_link"]["attached"], true);
    assert_eq!(metric(&node.d, "sluice:kv_receive_bytes_sum", "").await, 6_400.0);
    assert_eq!(node.host.state().confirmed, 1);
}

#[tokio::test]
async fn pushed_kv_comes_while_the_prefill_goes_on() {
    let node = Node::new(|config| config.max_step_tokens = 24).await;
    let (text, push) = (prompt(2), receive(1, "push"));
    let body = leg(greedy(&text, 32), None, Some(push));
    let prefilling = async {
        // The receive is there before the hold.
        until_link(&node.d, |link| link.receives == 1).await;
        node.host.conduct(Conduct::Stalls);
        let held = prefill(&node, &text, 1).await;
        let filled = |state: &fake_host::State| {
            state.holds.values().find(|held| held.is_filled).map(|held| held.parts)
        };
        let parts = node.host.until(filled).await;
        node.host.conduct(Conduct::Right);
        (held, parts)
    };
    let (answer, (held, parts)) = tokio::join!(complete(&node.d, &body), prefilling);
    assert_eq!(tokens_of(&answer), right_tokens(&text, 32));
    assert_eq!(held["sluice"]["tokens"], 100);
    // 24, 48, 72, 96 and 100 tokens are 1, 3, 4, 6 and 7 whole positions.
    assert_eq!(parts, 5);
    node.is_idle().await;
}

#[tokio::test]
async fn only_what_decode_lacks_comes() {
    let node = Node::new(|_| {}).await;
    let text = words(1, 58);
    for (number, external) in [(1, 58), (2, 68)] {
        let held = prefill(&node, &text, number).await;
        assert_eq!(held["sluice"]["cached_tokens"], if number == 1 { 0 } else { 48 });
        assert_eq!(tokens_of(&decode(&node, &text, number).await), right_tokens(&text, 32));
        assert_eq!(sources(&node.d).await.2, external);
    }
    node.is_idle().await;
}

#[tokio::test]
async fn blocks_of_different_sizes_exchange() {
    for (p_tokens, d_tokens) in [(16, 32), (32, 16), (48, 64)] {
        let place = Place::new();
        let host = FakeHost::start(&place);
        let with = |role, block_tokens| {
            emulator(EmulatorConfig { block_tokens, kv_bytes_per_token: 128, ..hosted(&place, role) })
        };
        let (p, d) = (with(Role::Prefill, p_tokens).await, with(Role::Decode, d_tokens).await);
        let node = Node { place, host, p, d };
        node.is_attached().await;
        let model = sluice_sim::Model::new(0, 128).unwrap();
        let params = sluice_sim::oracle::Params { model, ..Default::default() };
        // Decode has the head of the second prompt.
        for (number, text) in [(1, prompt(3)), (2, format!("{}{}", prompt(3), words(4, 45)))] {
            let tokens = sluice_sim::tokens::tokenize(&text);
            let asked = leg(greedy(&text, 1), Some(hold(number, "prompt")), None);
            assert_eq!(
                complete(&node.p, &asked).await["kv_transfer_params"]["sluice"]["tokens"],
                tokens.len()
            );
            let right = sluice_sim::oracle::complete(&tokens, 32, &params);
            assert_eq!(tokens_of(&decode(&node, &text, number).await), right, "{p_tokens} to {d_tokens}");
        }
        let (computed, cached, external) = sources(&node.d).await;
        assert_eq!((computed, cached), (0, 100 / d_tokens as u64 * d_tokens as u64));
        assert_eq!(cached + external, 245);
        node.is_idle().await;
    }
}

#[tokio::test]
async fn a_copy_that_does_not_happen_changes_the_answer() {
    let node = Node::new(|_| {}).await;
    prefill(&node, &prompt(5), 1).await;
    node.host.conduct(Conduct::SkipsCopies);
    assert_ne!(tokens_of(&decode(&node, &prompt(5), 1).await), right_tokens(&prompt(5), 32));
}

#[tokio::test]
async fn too_little_to_come_is_computed_and_the_hold_released() {
    let node = Node::new(|_| {}).await;
    prefill(&node, &prompt(6), 1).await;
    let mut wanted = receive(1, "pull");
    wanted["threshold_tokens"] = json!(101);
    let answer = complete(&node.d, &leg(greedy(&prompt(6), 32), None, Some(wanted))).await;
    assert_eq!(tokens_of(&answer), right_tokens(&prompt(6), 32));
    node.is_idle().await;
    node.host.until(|state| (state.released.len() == 1).then_some(())).await;
    assert_eq!((sources(&node.d).await, failed(&node.d).await), ((100, 0, 0), 0));
}

#[tokio::test]
async fn streams_and_chats_receive_too() {
    let node = Node::new(|_| {}).await;
    let messages = json!([{"role": "user", "content": prompt(7)}]);
    let chat = |tokens| json!({"messages": messages, "temperature": 0, "max_tokens": tokens, "return_token_ids": true});
    let asked = leg(chat(1), Some(hold(1, "prompt")), None);
    let held = post(&node.p, "/v1/chat/completions", &asked).await.json()["kv_transfer_params"].clone();
    assert_eq!(held["sluice"]["transfer"], id(1));
    let mut streamed = leg(chat(8), None, Some(receive(1, "pull")));
    streamed["stream"] = json!(true);
    let events = post(&node.d, "/v1/chat/completions", &streamed).await.events();
    let pieces = events.iter().filter_map(|event| event["choices"][0]["token_ids"].as_array());
    let plain = post(&node.p, "/v1/chat/completions", &chat(8)).await.json();
    assert_eq!(Value::from(pieces.flatten().cloned().collect::<Vec<_>>()), plain["choices"][0]["token_ids"]);
    assert_eq!(sources(&node.d).await.0, 0);
}

#[tokio::test]
async fn a_leg_that_cannot_be_read_is_refused_by_name() {
    let node = Node::new(|_| {}).await;
    for (change, part) in [
        (json!({"version": 2}), "sluice.version is 2"),
        (json!({"version": 1, "hold": {}}), "missing field `transfer`"),
        (json!({"version": 1, "receive": 7}), "sluice: invalid type"),
    ] {
        let answer =
            post(&node.d, "/v1/completions", &with_params(greedy("x", 1), json!({"sluice": change}))).await;
        assert_eq!(answer.status, http::StatusCode::BAD_REQUEST);
        let error = &answer.json()["error"];
        assert_eq!(error["param"], "kv_transfer_params");
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    }
}
