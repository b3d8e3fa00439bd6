//! KV from a prefill engine to a decode engine.

use serde_json::{Value, json};
use sluice_emulator::{Emulator, EmulatorConfig, Faults};
use sluice_sim::tokens::words;

use crate::client::*;

/// A prefill leg; its answer's transfer parameters.
pub async fn prefill(engine: &Emulator, prompt: &str) -> Value {
    let body = with_params(greedy(prompt, 1), json!({"do_remote_decode": true, "do_remote_prefill": false}));
    let answer = complete(engine, &body).await;
    assert_eq!(tokens_of(&answer), right_tokens(prompt, 1));
    answer["kv_transfer_params"].clone()
}

pub async fn decode(engine: &Emulator, prompt: &str, params: Value) -> Value {
    complete(engine, &with_params(greedy(prompt, 32), params)).await
}

#[tokio::test]
async fn moved_kv_answers_as_the_oracle_and_is_counted() {
    let (p, d) = (emulator(quick()).await, emulator(quick()).await);
    let prompt = words(1, 100);
    let params = prefill(&p, &prompt).await;
    assert_eq!(p.engine().now().held_blocks, 7);
    let answer = decode(&d, &prompt, params).await;
    assert_eq!(tokens_of(&answer), right_tokens(&prompt, 32));
    // The holder is free at once: no lease had to end.
    assert_eq!(until(p.engine(), |engine| engine.holds == 0).await.blocks.used, 0);
    let source = "vllm:prompt_tokens_by_source_total";
    assert_eq!(metric(&d, source, "external_kv_transfer").await, 100.0);
    assert_eq!(metric(&d, source, "local_compute").await, 0.0);
    assert_eq!(metric(&p, source, "local_compute").await, 100.0);
    assert_eq!(metric(&d, "vllm:nixl_bytes_transferred_sum", "").await, f64::from(7 * 16 * 64));
    assert_eq!(get(&p, "/emulator/state").await.json()["kv_bytes"]["served"], 7 * 16 * 64);
}

#[tokio::test]
async fn only_what_decode_lacks_is_read() {
    let (p, d) = (emulator(quick()).await, emulator(quick()).await);
    let prompt = words(1, 58);
    for (local, external, blocks) in [(0.0, 58.0, 4), (48.0, 68.0, 5)] {
        let params = prefill(&p, &prompt).await;
        let answer = decode(&d, &prompt, params).await;
        assert_eq!(tokens_of(&answer), right_tokens(&prompt, 32));
        assert_eq!(metric(&d, "vllm:prompt_tokens_by_source_total", "local_cache_hit").await, local);
        assert_eq!(metric(&d, "vllm:prompt_tokens_by_source_total", "external_kv_transfer").await, external);
        assert_eq!(metric(&d, "vllm:nixl_bytes_transferred_sum", "").await, f64::from(blocks * 16 * 64));
    }
}

#[tokio::test]
async fn decode_tells_what_prefill_found_cached() {
    let (p, d) = (emulator(quick()).await, emulator(quick()).await);
    let prompt = words(1, 58);
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    let params = prefill(&p, &prompt).await;
    assert_eq!(params["remote_prefill_cached_tokens"], 0);
    assert_eq!(cached(&decode(&d, &prompt, params).await), None);
    let params = prefill(&p, &prompt).await;
    assert_eq!(params["remote_prefill_cached_tokens"], 48);
    assert_eq!(cached(&decode(&d, &prompt, params).await), Some(48));
}

#[tokio::test]
async fn one_flipped_byte_between_the_legs_changes_the_answer() {
    let (p, d) = (emulator(quick()).await, emulator(quick()).await);
    let prompt = words(2, 40);
    for (block, offset) in [(0, 0), (1, 513), (2, 511)] {
        let params = prefill(&p, &prompt).await;
        let number = params["remote_block_ids"][0][block].as_u64().unwrap() as u32;
        assert!(p.engine().flip_byte(number, offset).await.unwrap());
        // A salt of its own: decode must not find the prompt in its cache.
        let mut body = with_params(greedy(&prompt, 32), params);
        body["cache_salt"] = json!(format!("{block}"));
        let answer = complete(&d, &body).await;
        assert_ne!(tokens_of(&answer), right_tokens(&prompt, 32), "block {block}, byte {offset}");
        assert!(p.engine().flip_byte(number, offset).await.unwrap());
    }
}

#[tokio::test]
async fn a_transfer_that_does_not_happen_changes_the_answer() {
    let p = emulator(quick()).await;
    let faults = Faults { skip_kv_copy: true };
    let d = emulator(EmulatorConfig { faults, ..quick() }).await;
    let prompt = words(3, 40);
    let params = prefill(&p, &prompt).await;
    assert_ne!(tokens_of(&decode(&d, &prompt, params).await), right_tokens(&prompt, 32));
    assert_eq!(metric(&d, "vllm:prompt_tokens_by_source_total", "external_kv_transfer").await, 40.0);
}

#[tokio::test]
async fn long_prompts_and_odd_blocks_move_whole() {
    let odd = || EmulatorConfig {
        block_tokens: 24,
        kv_bytes_per_token: 4_096,
        max_model_len: 4_000,
        blocks: 200,
        ..quick()
    };
    let (p, d) = (emulator(odd()).await, emulator(odd()).await);
    let prompt = words(4, 3_000);
    let model = sluice_sim::Model::new(0, 4_096).unwrap();
    let params = sluice_sim::oracle::Params { model, ..Default::default() };
    let right = sluice_sim::oracle::complete(&sluice_sim::tokens::tokenize(&prompt), 32, &params);
    let leg = with_params(greedy(&prompt, 1), json!({"do_remote_decode": true}));
    let handle = complete(&p, &leg).await["kv_transfer_params"].clone();
    assert_eq!(tokens_of(&decode(&d, &prompt, handle).await), right);
}

#[tokio::test]
async fn the_manner_of_0_33_takes_a_pre_tokenised_prompt_and_streams_its_handle() {
    let wire = sluice_emulator::Wire::V0_33;
    let p = emulator(EmulatorConfig { wire, ..quick() }).await;
    let prompt = words(5, 20);
    let ids = sluice_sim::tokens::tokenize(&prompt);
    let mut body =
        with_params(greedy("something else", 1), json!({"do_remote_decode": true, "prompt_token_ids": ids}));
    assert_eq!(tokens_of(&complete(&p, &body).await), right_tokens(&prompt, 1));
    body["stream"] = json!(true);
    let events = post(&p, "/v1/completions", &body).await.events();
    let finish = events.iter().find(|event| !event["choices"][0]["finish_reason"].is_null()).unwrap();
    assert_eq!(finish["kv_transfer_params"]["remote_num_tokens"], 20);
    assert_eq!(get(&p, "/version").await.json(), json!({"version": "0.33.0"}));
}
