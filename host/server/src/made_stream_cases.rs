use serde_json::{Value, json};

use super::*;
use crate::http::sse;

const USAGE: StreamOptions = StreamOptions { include_usage: true, continuous_usage: false };

/// The payloads of a made stream, `[DONE]` left out.
fn made(answer: &Value, endpoint: Endpoint, options: StreamOptions) -> Vec<Value> {
    let stream = of(answer.to_string().as_bytes(), endpoint, options);
    let payloads: Vec<_> =
        sse::events(&stream).map(|event| sse::payload(&event).expect("a payload").to_vec()).collect();
    let (done, chunks) = payloads.split_last().expect("events");
    assert_eq!(done, b"[DONE]");
    chunks.iter().map(|chunk| serde_json::from_slice(chunk).expect("JSON")).collect()
}

fn chat(message: Value, finish: &str) -> Value {
    json!({
        "id": "c", "object": "chat.completion", "created": 7, "model": "m",
        "choices": [{
            "index": 0, "message": message, "logprobs": null, "finish_reason": finish, "stop_reason": null,
            "token_ids": null, "routed_experts": null,
        }],
        "service_tier": null, "system_fingerprint": "f", "prompt_token_ids": null, "prompt_text": null, "metrics": null,
        "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": null},
    })
}

/// What clients make of a stream: each choice's deltas, added up.
fn added_up(chunks: &[Value]) -> Value {
    let mut message = json!({"content": "", "reasoning": "", "tool_calls": []});
    let mut end = json!({});
    for chunk in chunks {
        for choice in chunk["choices"].as_array().expect("choices") {
            for name in ["content", "reasoning"] {
                let said = choice["delta"][name].as_str().unwrap_or_default();
                message[name] = json!(message[name].as_str().expect("a text").to_owned() + said);
            }
            for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                let calls = message["tool_calls"].as_array_mut().expect("a list");
                assert_eq!(call["index"], calls.len());
                calls.push(json!({"id": call["id"], "type": call["type"], "function": call["function"]}));
            }
            if !choice["finish_reason"].is_null() {
                end = json!({"finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]});
            }
        }
    }
    json!({"message": message, "end": end, "usage": chunks.last().map(|chunk| chunk["usage"].clone())})
}

#[test]
fn a_chat_has_the_chunks_that_an_engine_would_send() {
    let answer = chat(
        json!({"role": "assistant", "content": "Hi \"you\"\n", "refusal": null, "reasoning": null}),
        "stop",
    );
    let chunk = |choice: Value| json!({"id": "c", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice]});
    let mut role = chunk(
        json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}),
    );
    (role["prompt_token_ids"], role["prompt_text"]) = (Value::Null, Value::Null);
    let words = chunk(
        json!({"index": 0, "delta": {"content": "Hi \"you\"\n"}, "logprobs": null, "finish_reason": null, "token_ids": null}),
    );
    let mut last = chunk(
        json!({"index": 0, "delta": {"content": ""}, "logprobs": null, "finish_reason": "stop", "stop_reason": null, "token_ids": null}),
    );
    let mut usage = chunk(json!({}));
    usage["choices"] = json!([]);
    usage["usage"] = json!({"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2});
    usage["system_fingerprint"] = json!("f");
    assert_eq!(made(&answer, Endpoint::Chat, USAGE), [role.clone(), words.clone(), last.clone(), usage]);
    last["system_fingerprint"] = json!("f");
    assert_eq!(made(&answer, Endpoint::Chat, StreamOptions::default()), [role, words, last]);
}

#[test]
fn reasoning_tools_and_logprobs_are_carried_over() {
    let call =
        |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}});
    let message = json!({"role": "assistant", "content": null, "reasoning": "Hm", "tool_calls": [call("1"), call("2")], "refusal": "no"});
    let mut answer = chat(message, "tool_calls");
    answer["choices"][0]["logprobs"] = json!({"content": [{"token": "a", "logprob": -1.0}]});
    answer["choices"][0]["token_ids"] = json!([4, 5]);
    answer["prompt_token_ids"] = json!([1, 2, 3]);
    let chunks = made(&answer, Endpoint::Chat, USAGE);
    let deltas: Vec<_> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    assert_eq!(*deltas[1], json!({"reasoning": "Hm"}));
    assert_eq!(
        (deltas[2]["tool_calls"][1]["index"].as_u64(), deltas[3]),
        (Some(1), &json!({"refusal": "no"}))
    );
    assert_eq!(added_up(&chunks)["message"]["tool_calls"], json!([call("1"), call("2")]));
    assert_eq!(chunks[0]["prompt_token_ids"], json!([1, 2, 3]));
    // Each once.
    let told = |name: &str| {
        chunks.iter().map(|chunk| &chunk["choices"][0][name]).filter(|value| !value.is_null()).count()
    };
    assert_eq!((told("logprobs"), told("token_ids"), told("finish_reason")), (1, 1, 1));
    // An answer without words has its ids where it ends.
    let mut silent = chat(json!({"role": "assistant", "content": ""}), "stop");
    silent["choices"][0]["token_ids"] = json!([2]);
    let chunks = made(&silent, Endpoint::Chat, StreamOptions::default());
    assert_eq!((chunks.len(), &chunks[1]["choices"][0]["token_ids"]), (2, &json!([2])));
}

#[test]
fn completions_and_their_usage_are_carried_over() {
    let answer = json!({
        "id": "c", "object": "text_completion", "created": 7, "model": "m",
        "choices": [{"index": 0, "text": "ab", "logprobs": null, "finish_reason": "length", "stop_reason": null,
            "token_ids": [4], "prompt_logprobs": null, "prompt_token_ids": [1], "routed_experts": null}],
        "system_fingerprint": "f", "usage": {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1},
    });
    let continuous = StreamOptions { continuous_usage: true, ..USAGE };
    let chunks = made(&answer, Endpoint::Completions, continuous);
    assert_eq!(
        chunks[0]["choices"][0],
        json!({"index": 0, "text": "ab", "logprobs": null, "finish_reason": null, "stop_reason": null, "prompt_token_ids": [1], "token_ids": [4]})
    );
    assert_eq!(chunks[1]["choices"][0]["finish_reason"], "length");
    assert!(chunks.iter().all(|chunk| chunk["usage"] == answer["usage"]), "{chunks:?}");
    let chat = made(&chat(json!({"role": "assistant", "content": "a"}), "stop"), Endpoint::Chat, continuous);
    assert_eq!(chat[0]["usage"], json!({"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0}));
}

/// The members of a recorded chunk and of one that is made, by their place in the stream, are the same.
#[test]
fn made_chunks_have_the_members_of_recorded_ones() {
    for (kind, endpoint) in [("chat", Endpoint::Chat), ("completions", Endpoint::Completions)] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cases/vllm_sse");
        let recorded =
            std::fs::read_to_string(format!("{folder}/{kind}_usage.sse")).expect("a recorded stream");
        let recorded: Vec<Value> = recorded
            .lines()
            .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
            .collect();
        let first = &recorded[0];
        let answer = json!({
            "id": first["id"], "created": first["created"], "model": first["model"],
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "text": "x", "logprobs": null,
                "finish_reason": "length", "stop_reason": null, "token_ids": null, "prompt_token_ids": null}],
            "prompt_token_ids": null, "prompt_text": null, "system_fingerprint": "f",
            "usage": {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1, "prompt_tokens_details": null},
        });
        let chunks = made(&answer, endpoint, USAGE);
        let shape = |chunk: &Value| {
            let keys =
                |value: &Value| value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>());
            let choice = &chunk["choices"][0];
            (keys(chunk), keys(choice), keys(&choice["delta"]), keys(&chunk["usage"]))
        };
        let distinct = |chunks: &[Value]| {
            let mut shapes: Vec<_> = chunks.iter().map(shape).collect();
            shapes.dedup();
            shapes
        };
        assert_eq!(distinct(&chunks), distinct(&recorded), "{kind}");
    }
}

proptest::proptest! {
    /// A client reads the same of a made stream as of the whole answer.
    #[test]
    fn streams_say_what_answers_say(
        content in ".{0,40}",
        reasoning in ".{0,20}",
        tools in 0_usize..3,
        finish in proptest::sample::select(vec!["stop", "length", "tool_calls"]),
    ) {
        let call = |index: usize| json!({"id": format!("call-{index}"), "type": "function", "function": {"name": "f", "arguments": content}});
        let calls: Vec<_> = (0..tools).map(call).collect();
        let answer = chat(json!({"role": "assistant", "content": content, "reasoning": reasoning, "tool_calls": calls}), finish);
        let read = added_up(&made(&answer, Endpoint::Chat, USAGE));
        let expected = json!({
            "message": {"content": content, "reasoning": reasoning, "tool_calls": calls},
            "end": {"finish_reason": finish, "stop_reason": null},
            "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2},
        });
        proptest::prop_assert_eq!(read, expected);
    }
}
