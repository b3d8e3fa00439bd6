//! Engines that keep turns themselves, to the byte: what they are sent, and one that reads a prompt otherwise than it says.

use serde_json::{Value, json};
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode, PolicyFile, Recorded};

use crate::SOON;

/// Ids of the first turn's prompt, of its answer, and of the second turn's prompt.
const FIRST: std::ops::Range<u32> = 0..40;
const ANSWER: std::ops::Range<u32> = 100..108;

fn second() -> Vec<u32> {
    FIRST.chain(ANSWER).chain(200..220).collect()
}

fn given_back() -> Value {
    json!({
        "do_remote_prefill": false, "do_remote_decode": true, "remote_engine_id": "engine-d", "remote_request_id": "cmpl-d",
        "remote_host": "127.0.0.1", "remote_port": 5700, "remote_block_ids": [[7, 8, 9]], "tp_size": 1, "remote_num_tokens": 47,
        "remote_blocks_expiry_time": 3_220.9,
    })
}

/// A decode engine whose every turn is the first one's. It keeps what it fetched, and tells ids where it is asked.
async fn decode() -> MockEngine {
    let script = |asked: &Recorded| {
        // So blocks are given back.
        if asked.body["model"] != "emulated" {
            return Canned::json(404, &json!({"error": {"message": "no such model"}}));
        }
        let mut choice = json!({"index": 0, "text": " words", "finish_reason": "length"});
        if asked.body["return_token_ids"] == true {
            choice["token_ids"] = json!(ANSWER.collect::<Vec<_>>());
            choice["prompt_token_ids"] = json!(FIRST.collect::<Vec<_>>());
        }
        let fetched = asked.body["kv_transfer_params"]["do_remote_prefill"] == true;
        let answer = json!({
            "id": "cmpl-d", "object": "text_completion", "model": "emulated", "choices": [choice],
            "usage": {"prompt_tokens": 40, "total_tokens": 48, "completion_tokens": 8},
            "kv_transfer_params": if fetched { given_back() } else { Value::Null },
        });
        Canned::json(200, &answer)
    };
    MockEngine::start(script).await.unwrap()
}

/// What a prefill engine says that it read, where it fetches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    AsItSays,
    /// The same as far as it fetches.
    OtherwiseLater,
    Otherwise,
    Untold,
}

async fn prefill(reads: Reads) -> MockEngine {
    let script = move |asked: &Recorded| {
        if asked.path == "/tokenize" {
            return Canned::json(200, &json!({"count": 68, "max_model_len": 4_096, "tokens": second()}));
        }
        let mut answer: Value = serde_json::from_slice(&Canned::prefilled().pieces.concat()).unwrap();
        let mut read = second();
        match reads {
            Reads::AsItSays => {}
            Reads::OtherwiseLater => read[50] = 9,
            Reads::Otherwise => read[20] = 9,
            Reads::Untold => return Canned::json(200, &answer),
        }
        answer["choices"][0]["prompt_token_ids"] = json!(read);
        Canned::json(200, &answer)
    };
    MockEngine::start(script).await.unwrap()
}

async fn ask(host: &Host, text: &str) -> Value {
    let body = json!({"model": "emulated", "prompt": text, "max_tokens": 8, "conversation_id": "c"});
    let answer = host.client().post("/v1/completions", &body).await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[tokio::test]
async fn what_is_not_known_to_be_right_is_not_used() {
    for reads in [Reads::AsItSays, Reads::OtherwiseLater, Reads::Otherwise, Reads::Untold] {
        let (prefill, decode) = (prefill(reads).await, decode().await);
        let guest = PolicyFile::guest("keeps-turns", "keeps-turns").unwrap();
        let plan = HostPlan::new(Mode::Bidirectional).policy("keeps-turns");
        let plan = plan.worker("prefill", prefill.url()).worker("decode", decode.url());
        let host = Host::start(&plan, &[guest]).await.unwrap();
        host.until_ready().await.unwrap();
        for text in ["hello", "hello again"] {
            let seen = ask(&host, text).await;
            assert!(
                seen["kv_transfer_params"].is_null() && seen["choices"][0]["token_ids"].is_null(),
                "{seen}"
            );
        }
        let legs: Vec<_> = prefill.seen().into_iter().filter(|leg| leg.path != "/tokenize").collect();
        let asked: Vec<_> = legs.iter().map(|leg| &leg.body["return_token_ids"]).collect();
        assert_eq!(asked, [&Value::Null, &Value::Bool(true)], "{reads:?}");
        // All whole blocks; and prefill keeps what it makes of them.
        let mut offered = given_back();
        (offered["remote_num_tokens"], offered["remote_block_ids"]) = (32.into(), json!([[7, 8]]));
        assert_eq!(legs[1].body["kv_transfer_params"], offered, "{reads:?}");
        let is_right = matches!(reads, Reads::AsItSays | Reads::OtherwiseLater);
        let generating: Vec<_> =
            decode.seen().into_iter().filter(|leg| leg.body["max_tokens"] == 8).collect();
        let fetched: Vec<_> = generating
            .iter()
            .map(|leg| leg.body["kv_transfer_params"]["remote_engine_id"] == "engine-p")
            .collect();
        assert_eq!(fetched, [true, is_right], "{reads:?}");

        let metrics = host.metrics().await.unwrap();
        let fallbacks = metrics.sum("sluice_fallbacks_total", &[("reason", "read_otherwise")]);
        assert_eq!(fallbacks, if is_right { 0.0 } else { 1.0 }, "{reads:?}");
        // It may have cached what it computed: nobody is sent there any more.
        let draining = metrics.sum("sluice_worker_draining", &[("worker", "prefill-0")]);
        assert_eq!(draining == 1.0, reads == Reads::Otherwise, "{reads:?}");
        // What it keeps of the turn is read, or given back.
        let prefill = [("worker", "prefill-0")];
        host.until_metric("sluice_worker_handles", &prefill, |handles| handles == 0.0, SOON).await.unwrap();
    }
}
