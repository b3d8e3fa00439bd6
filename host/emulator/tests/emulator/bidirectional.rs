//! KV back from decode to prefill, turn after turn.

use http::StatusCode;
use serde_json::{Value, json};
use sluice_emulator::{Emulator, EmulatorConfig, Wire};
use sluice_sim::tokens::{tokenize, words};

use crate::client::*;
use crate::pull::{decode, prefill};

fn both_ways() -> EmulatorConfig {
    // The prefill engine must not answer from its own cache.
    EmulatorConfig { bidirectional: true, kv_recompute_threshold: 16, prefix_caching: false, ..quick() }
}

/// A first turn; the decode engine's handle and the next prompt.
async fn first_turn(p: &Emulator, d: &Emulator) -> (Value, String) {
    let prompt = words(1, 76);
    let params = prefill(p, &prompt).await;
    let answer = decode(d, &prompt, params).await;
    let handle = answer["kv_transfer_params"].clone();
    let output = tokens_of(&answer).len();
    assert_eq!(handle["remote_num_tokens"], 76 + output - 1);
    assert_eq!(handle["do_remote_decode"], true);
    assert!(handle["remote_blocks_expiry_time"].as_f64().unwrap() > 0.0);
    let next = format!("{prompt}{}{}", answer["choices"][0]["text"].as_str().unwrap(), words(2, 5));
    (handle, next)
}

#[tokio::test]
async fn prefill_reads_back_what_decode_holds() {
    let (p, d) = (emulator(both_ways()).await, emulator(both_ways()).await);
    let (handle, next) = first_turn(&p, &d).await;
    let held = handle["remote_num_tokens"].as_f64().unwrap();
    let answer = complete(&p, &with_params(greedy(&next, 1), handle)).await;
    let params = answer["kv_transfer_params"].clone();
    assert_eq!(params["remote_prefill_cached_tokens"].as_f64(), Some(held));
    assert_eq!(metric(&p, "vllm:prompt_tokens_by_source_total", "external_kv_transfer").await, held);
    assert_eq!(until(d.engine(), |engine| engine.holds == 0).await.blocks.used, 0);
    assert_eq!(tokens_of(&decode(&d, &next, params).await), right_tokens(&next, 32));
}

#[tokio::test]
async fn a_prompt_that_does_not_continue_is_silently_wrong_unless_both_are_cut() {
    let (p, d) = (emulator(both_ways()).await, emulator(both_ways()).await);
    // What decode holds stops being a prefix after 60 tokens.
    let changed = format!("{}{}", words(1, 60), words(7, 40));
    let cut_tokens = json!({"remote_num_tokens": 60});
    for (cut_blocks, equal) in [(false, false), (true, true)] {
        let (mut handle, _) = first_turn(&p, &d).await;
        assert!(tokenize(&changed).starts_with(&tokenize(&words(1, 60))));
        let uncut = complete(&p, &with_params(greedy(&changed, 4), handle.clone())).await;
        assert_ne!(tokens_of(&uncut), right_tokens(&changed, 4));
        handle.as_object_mut().unwrap().extend(cut_tokens.as_object().unwrap().clone());
        if cut_blocks {
            handle["remote_block_ids"][0].as_array_mut().unwrap().truncate(60_usize.div_ceil(16));
        }
        let answer = complete(&p, &with_params(greedy(&changed, 4), handle)).await;
        assert_eq!(tokens_of(&answer) == right_tokens(&changed, 4), equal, "blocks cut: {cut_blocks}");
    }
}

#[tokio::test]
async fn an_expired_hold_is_answered_500() {
    let p = emulator(both_ways()).await;
    let d = emulator(EmulatorConfig { decoder_ttl_ms: 0, ..both_ways() }).await;
    let (handle, next) = first_turn(&p, &d).await;
    let answer = post(&p, "/v1/completions", &with_params(greedy(&next, 1), handle)).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn a_plain_request_pins_nothing_and_streams_tell_by_version() {
    for (wire, tells) in [(Wire::V0_32, false), (Wire::V0_33, true)] {
        let p = emulator(EmulatorConfig { wire, ..both_ways() }).await;
        let d = emulator(EmulatorConfig { wire, ..both_ways() }).await;
        assert!(complete(&d, &greedy("hello", 4)).await["kv_transfer_params"].is_null());
        assert_eq!(d.engine().now().holds, 0);
        let prompt = words(1, 40);
        let mut body = with_params(greedy(&prompt, 8), prefill(&p, &prompt).await);
        body["stream"] = json!(true);
        let events = post(&d, "/v1/completions", &body).await.events();
        let told = events.iter().filter(|event| event["kv_transfer_params"].is_object()).collect::<Vec<_>>();
        assert_eq!(told.len(), usize::from(tells));
        assert!(told.iter().all(|event| event["choices"][0]["finish_reason"].is_string()));
        // Told or not, the blocks are pinned.
        assert_eq!(d.engine().now().holds, 1);
    }
}
