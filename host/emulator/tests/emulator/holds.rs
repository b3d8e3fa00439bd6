//! Blocks kept for a reader: until it is done, is refused, leaves, or comes too late.

use http::StatusCode;
use serde_json::json;
use sluice_emulator::EmulatorConfig;
use sluice_sim::tokens::words;

use crate::client::*;
use crate::pull::{decode, prefill};

/// Long enough for any test, short enough for none to wait for it by accident.
const HOUR_MS: u64 = 3_600_000;

fn held_for(kv_lease_ms: u64) -> EmulatorConfig {
    EmulatorConfig { kv_lease_ms, ..quick() }
}

#[tokio::test]
async fn a_lease_ends_and_a_late_read_gets_what_is_there_now() {
    let p = emulator(EmulatorConfig { blocks: 257, ..held_for(1) }).await;
    let d = emulator(quick()).await;
    let prompt = words(1, 40);
    let params = prefill(&p, &prompt).await;
    until(p.engine(), |engine| engine.holds == 0 && engine.blocks.used == 0).await;
    assert_eq!(metric(&p, "vllm:nixl_num_kv_expired_reqs_total", "").await, 1.0);
    // The blocks are used for something else, all of them.
    complete(&p, &greedy(&words(2, 4_000), 90)).await;
    let answer = decode(&d, &prompt, params).await;
    assert_ne!(tokens_of(&answer), right_tokens(&prompt, 32));
    assert_eq!(metric(&p, "vllm:nixl_num_notifications_after_expiry_total", "").await, 1.0);
}

#[tokio::test]
async fn a_streamed_prefill_leg_strands_its_blocks() {
    let p = emulator(held_for(HOUR_MS)).await;
    let mut body = with_params(greedy(&words(1, 40), 1), json!({"do_remote_decode": true}));
    body["stream"] = json!(true);
    let answer = post(&p, "/v1/completions", &body).await;
    assert!(!answer.text().contains("kv_transfer_params"));
    assert_eq!(p.engine().now().held_blocks, 3);
}

#[tokio::test]
async fn a_refused_decode_leg_ends_the_hold() {
    let (p, d) = (emulator(held_for(HOUR_MS)).await, emulator(quick()).await);
    let params = prefill(&p, &words(1, 40)).await;
    let mut body = with_params(greedy("x", 1), params.clone());
    body["model"] = json!("nope");
    for _ in 0..2 {
        assert_eq!(post(&d, "/v1/completions", &body).await.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(until(p.engine(), |engine| engine.holds == 0).await.blocks.used, 0);
}

#[tokio::test]
async fn a_decode_leg_that_is_left_in_the_queue_ends_the_hold() {
    let p = emulator(held_for(HOUR_MS)).await;
    let d = emulator(EmulatorConfig { max_num_seqs: 1, soft_failures: false, ..quick() }).await;
    let params = prefill(&p, &words(1, 40)).await;
    // One that hangs fills the batch.
    let mut hanging = params.clone();
    hanging["remote_host"] = json!(null);
    let ask = |params| {
        let body = with_params(greedy(&words(1, 40), 8), params);
        let to = d.http_addr();
        async move { call(to, http::Method::POST, "/v1/completions", None, Some(&body)).await }
    };
    let hangs = ask(hanging);
    let rest = async {
        until(d.engine(), |engine| engine.loading == 1).await;
        tokio::select! {
            _ = ask(params) => panic!("there was no room for it"),
            _ = until(d.engine(), |engine| engine.waiting == 1) => {}
        }
        until(p.engine(), |engine| engine.holds == 0).await
    };
    tokio::select! {
        _ = hangs => panic!("it should hang"),
        idle = rest => assert_eq!(idle.blocks.used, 0),
    }
    assert_eq!(until(d.engine(), |engine| engine.loading == 0).await.blocks.used, 0);
}
