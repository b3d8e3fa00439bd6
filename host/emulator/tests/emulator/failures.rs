//! What a real engine refuses, dies of, or never answers.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_emulator::{Emulator, EmulatorConfig, LoadFailure, run_until};
use sluice_sim::tokens::words;

use crate::client::*;
use crate::pull::prefill;

async fn decode_with(p: &Emulator, d: &Emulator, prompt: &str, change: Value) -> Answered {
    let mut params = prefill(p, prompt).await;
    params.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    post(d, "/v1/completions", &with_params(greedy(prompt, 8), params)).await
}

/// What makes a read fail.
fn unreadable() -> [Value; 4] {
    // Nobody listens on port 1 of loopback.
    [
        json!({"remote_engine_id": "another"}),
        json!({"remote_port": 1}),
        json!({"remote_block_ids": [[1]]}),
        json!({"remote_block_ids": [[1, 2, 99_999]]}),
    ]
}

#[tokio::test]
async fn kv_that_cannot_be_read_is_answered_500_by_the_policy_fail() {
    let (p, d) = (emulator(quick()).await, emulator(quick()).await);
    for (seed, change) in (0..).zip(unreadable()) {
        let answer = decode_with(&p, &d, &words(seed, 40), change.clone()).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR, "{change}");
        assert_eq!(answer.json()["error"]["type"], "InternalServerError");
    }
    assert_eq!(metric(&d, "vllm:nixl_num_failed_transfers_total", "").await, 4.0);
    assert_eq!(metric(&d, "vllm:request_success_total", "error").await, 4.0);
    assert_eq!(d.engine().now().blocks.used, 0);
}

#[tokio::test]
async fn kv_that_cannot_be_read_is_computed_by_the_policy_recompute() {
    let p = emulator(quick()).await;
    let d = emulator(EmulatorConfig { load_failure: LoadFailure::Recompute, ..quick() }).await;
    for (seed, change) in (0..).zip(unreadable()) {
        let prompt = words(seed, 40);
        let answer = decode_with(&p, &d, &prompt, change.clone()).await;
        assert_eq!(tokens_of(&answer.json()), right_tokens(&prompt, 8), "{change}");
    }
    assert_eq!(metric(&d, "vllm:prompt_tokens_by_source_total", "local_compute").await, 160.0);
}

#[tokio::test]
async fn a_failure_in_a_stream_is_an_event() {
    let (p, d) = (emulator(quick()).await, emulator(quick()).await);
    let mut params = prefill(&p, &words(1, 40)).await;
    params["remote_engine_id"] = json!("another");
    let mut body = with_params(greedy(&words(1, 40), 8), params);
    body["stream"] = json!(true);
    let answer = post(&d, "/v1/completions", &body).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.events()[0]["error"]["code"], 500);
    assert_eq!(answer.events()[1], "[DONE]");
}

#[tokio::test]
async fn do_remote_prefill_alone_kills_the_engine() {
    let mut d = emulator(quick()).await;
    let body = with_params(greedy("x", 8), json!({"do_remote_prefill": true}));
    let to = d.http_addr();
    let (died, _) = tokio::join!(d.died(), call(to, Method::POST, "/v1/completions", None, Some(&body)));
    assert_eq!(died.to_string(), "the engine died: do_remote_prefill without remote_block_ids");
    assert!(call(to, Method::GET, "/health", None, None).await.is_none());
}

#[tokio::test]
async fn a_dead_engine_closes_its_sockets_though_nobody_watches() {
    let d = emulator(quick()).await;
    let mut probe = d.engine();
    let body = with_params(greedy("x", 8), json!({"do_remote_prefill": true}));
    call(d.http_addr(), Method::POST, "/v1/completions", None, Some(&body)).await;
    assert!(probe.until(|_| false).await.is_err());
    while tokio::net::TcpStream::connect(d.http_addr()).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_death_ends_run_until_with_an_error() {
    let (ready, banner) = std::sync::mpsc::channel();
    let running =
        run_until(quick(), move |banner| ready.send(banner.to_owned()).unwrap(), std::future::pending());
    let killing = async {
        let banner = banner.try_recv().unwrap();
        let address = banner.split("http://").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        let body = with_params(greedy("x", 8), json!({"do_remote_prefill": true}));
        call(address, Method::POST, "/v1/completions", None, Some(&body)).await
    };
    tokio::pin!(running);
    // The first poll binds and gives the banner.
    let early = tokio::select! {
        biased;
        ended = &mut running => Some(ended),
        () = tokio::task::yield_now() => None,
    };
    assert!(early.is_none());
    let (ended, _) = tokio::join!(running, killing);
    assert!(ended.unwrap_err().to_string().starts_with("the engine died"));
}

#[tokio::test]
async fn a_missing_host_hangs_that_request_alone() {
    let (p, d) = (emulator(quick()).await, emulator(quick()).await);
    let prompt = words(1, 40);
    let hangs = decode_with(&p, &d, &prompt, json!({"remote_host": null}));
    tokio::select! {
        _ = hangs => panic!("a real engine never answers"),
        _ = until(d.engine(), |engine| engine.loading == 1) => {}
    }
    assert_eq!(tokens_of(&complete(&d, &greedy(&prompt, 8)).await), right_tokens(&prompt, 8));
    assert_eq!(until(d.engine(), |engine| engine.loading == 0).await.blocks.used, 0);
}

#[tokio::test]
async fn soft_failures_answer_500_and_are_counted() {
    let p = emulator(quick()).await;
    let d = emulator(EmulatorConfig { soft_failures: true, ..quick() }).await;
    for change in [json!({"remote_host": null}), json!({"remote_block_ids": null})] {
        let answer = decode_with(&p, &d, &words(1, 40), change).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    }
    assert_eq!(get(&d, "/emulator/state").await.json()["softened_failures"], 2);
    assert_eq!(get(&d, "/health").await.status, StatusCode::OK);
}
