//! One engine alone.

use http::StatusCode;
use serde_json::{Value, json};
use sluice_emulator::EmulatorConfig;
use sluice_sim::Sampling;
use sluice_sim::TimeModel;
use sluice_sim::chat::{Message, render};
use sluice_sim::oracle::{self, Params};
use sluice_sim::tokens::{tokenize, words};

use crate::client::*;

#[tokio::test]
async fn completions_equal_the_oracle_cached_or_not() {
    let engine = emulator(quick()).await;
    let prompt = format!("Once upon a time{}", words(1, 100));
    // The last token is computed anew, so its block is never taken from the cache.
    let whole_blocks = (tokenize(&prompt).len() as u64 - 1) / 16 * 16;
    for cached in [None, Some(whole_blocks)] {
        let answer = complete(&engine, &greedy(&prompt, 40)).await;
        assert_eq!(tokens_of(&answer), right_tokens(&prompt, 40));
        assert_eq!(answer["choices"][0]["text"], right_text(&prompt, 40));
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64(), cached);
    }
}

#[tokio::test]
async fn streamed_is_unstreamed_in_pieces() {
    let engine = emulator(quick()).await;
    let chat = json!({"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0,
        "max_tokens": 50, "return_token_ids": true});
    let completion = greedy("hello", 50);
    for (path, body) in [("/v1/chat/completions", chat), ("/v1/completions", completion)] {
        let whole = post(&engine, path, &body).await.json();
        let mut streamed = body;
        streamed["stream"] = json!(true);
        let events = post(&engine, path, &streamed).await.events();
        let (mut text, mut tokens) = (String::new(), Vec::new());
        for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
            text += choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap();
            tokens.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
        }
        let choice = &whole["choices"][0];
        assert_eq!(Some(text.as_str()), choice["message"]["content"].as_str().or(choice["text"].as_str()));
        assert_eq!(&Value::from(tokens), &choice["token_ids"]);
        assert_eq!(events.last().unwrap(), "[DONE]");
    }
}

#[tokio::test]
async fn a_conversation_hits_the_cache_and_stays_right() {
    let engine = emulator(quick()).await;
    let mut messages = Vec::new();
    for turn in 0..3 {
        let question = format!("turn {turn}{}", words(turn, 40));
        messages.push(Message { role: "user".into(), content: question });
        let prompt = tokenize(&render(&messages, true));
        let sent: Vec<_> = messages
            .iter()
            .map(|message| json!({"role": message.role, "content": message.content}))
            .collect();
        let body = json!({"messages": sent, "temperature": 0, "max_completion_tokens": 30, "return_token_ids": true});
        let answer = post(&engine, "/v1/chat/completions", &body).await.json();
        assert_eq!(tokens_of(&answer), oracle::complete(&prompt, 30, &Params::default()), "turn {turn}");
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        assert_eq!(cached > 0, turn > 0, "turn {turn}: {cached} cached");
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        messages.push(Message { role: "assistant".into(), content });
    }
}

#[tokio::test]
async fn sampled_choices_differ_and_are_all_right() {
    let engine = emulator(quick()).await;
    let body = json!({"prompt": "hello", "max_tokens": 8, "temperature": 0.7, "seed": 5, "n": 3,
        "return_token_ids": true});
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = json!(stream);
        let answer = post(&engine, "/v1/completions", &body).await;
        let choices: Vec<Value> = match stream {
            false => answer.json()["choices"].as_array().unwrap().clone(),
            true => answer.events().iter().filter_map(|event| event["choices"].get(0).cloned()).collect(),
        };
        for choice in 0..3 {
            let mine = choices.iter().filter(|piece| piece["index"] == choice);
            let tokens: Vec<_> =
                mine.flat_map(|piece| piece["token_ids"].as_array().unwrap().clone()).collect();
            let params = Params { sampling: Sampling::Seeded(5), choice, ..Params::default() };
            let right = oracle::complete(&tokenize("hello"), 8, &params);
            assert_eq!(Value::from(tokens), Value::from(right), "choice {choice}, stream {stream}");
        }
    }
}

#[tokio::test]
async fn many_at_once_are_all_right() {
    let engine = emulator(EmulatorConfig { blocks: 300, max_num_seqs: 8, ..quick() }).await;
    let mut asked = tokio::task::JoinSet::new();
    let to = engine.http_addr();
    for seed in 0..40 {
        asked.spawn(async move {
            let prompt = words(seed, 200);
            let body = greedy(&prompt, 30);
            let answer = call(to, http::Method::POST, "/v1/completions", None, Some(&body)).await.unwrap();
            assert_eq!(tokens_of(&answer.json()), right_tokens(&prompt, 30));
        });
    }
    while let Some(done) = asked.join_next().await {
        done.unwrap();
    }
    assert_eq!(engine.engine().now().blocks.used, 0);
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_blocks() {
    // A step takes long, so the answer cannot end before the client is gone.
    let slow = TimeModel { decode_step_base_ms: 50.0, ..TimeModel::default() };
    let engine = emulator(EmulatorConfig { time: slow, ..quick() }).await;
    for stream in [false, true] {
        let mut body = greedy("hello", 2_000);
        body["ignore_eos"] = json!(true);
        body["stream"] = json!(stream);
        let to = engine.http_addr();
        let asking = async move { call(to, http::Method::POST, "/v1/completions", None, Some(&body)).await };
        tokio::select! {
            _ = asking => panic!("the answer came before the client left"),
            _ = until(engine.engine(), |engine| engine.running == 1) => {}
        }
        let idle = until(engine.engine(), |engine| engine.running + engine.waiting == 0).await;
        assert_eq!(idle.blocks.used, 0, "stream {stream}");
    }
    assert_eq!(metric(&engine, "vllm:request_success_total", "abort").await, 2.0);
}

#[tokio::test]
async fn token_prompts_and_tokenize_agree_with_text() {
    let engine = emulator(quick()).await;
    let prompt = format!("Say{}", words(9, 20));
    let tokenized = post(&engine, "/tokenize", &json!({"prompt": prompt})).await.json();
    let mut body = greedy("", 10);
    body["prompt"] = tokenized["tokens"].clone();
    assert_eq!(tokens_of(&complete(&engine, &body).await), right_tokens(&prompt, 10));
    let back = post(&engine, "/detokenize", &json!({"tokens": tokenized["tokens"]})).await.json();
    assert_eq!(back["prompt"], prompt);
}

#[tokio::test]
async fn what_cannot_be_is_refused_in_words() {
    let engine = emulator(quick()).await;
    let long = vec![5; 4_097];
    for (body, param, message) in [
        (json!({"model": "nope", "prompt": "x"}), json!("model"), "The model `nope` does not exist"),
        (json!({"prompt": long}), json!("input_tokens"), "your prompt contains at least 4097 input tokens"),
        (
            json!({"prompt": "x", "max_tokens": 5000}),
            json!("input_tokens"),
            "for a total of at least 5001 tokens",
        ),
        (json!({"prompt": "x", "max_tokens": 0}), json!(null), "max_tokens must be at least 1, got 0."),
        (json!({"prompt": ""}), json!("prompt"), "must not be empty"),
        (json!({"prompt": [99_999]}), json!(null), "Token id 99999 is out of vocabulary"),
        (json!({"prompt": "x", "stop": ["y"]}), json!("stop"), "does not support `stop`"),
        (json!({"messages": []}), json!("body.prompt"), "Field required"),
        (json!({"prompt": "x", "temperature": -1}), json!(null), "temperature must be non-negative"),
        (json!({"prompt": 7}), json!(null), "1 validation error"),
    ] {
        let answer = post(&engine, "/v1/completions", &body).await;
        let error = &answer.json()["error"];
        assert!(answer.status.is_client_error(), "{body}");
        assert_eq!(error["code"], answer.status.as_u16());
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
    }
    assert_eq!(get(&engine, "/v1/completions").await.status, StatusCode::METHOD_NOT_ALLOWED);
}
