//! What clients of split requests are told of tokens: counted once, and cached as the prefill engine had them.

use serde_json::{Value, json};
use sluice_harness::mock_engine::{End, handle};
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode};

fn usage(prompt: u32, completion: u32, details: &Value) -> Value {
    json!({
        "prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion,
        "prompt_tokens_details": details,
    })
}

/// An engine that prefills with so many tokens cached, and one that decodes with the whole prompt for cached.
async fn pair(cached: &Value) -> (Host, MockEngine, MockEngine) {
    let cached = cached.clone();
    let prefill = MockEngine::start(move |_| {
        let mut handle = handle();
        handle["remote_prefill_cached_tokens"] = cached.clone();
        Canned::json(
            200,
            &json!({
                "id": "cmpl-1", "choices": [{"index": 0, "text": " x", "finish_reason": "length"}],
                "usage": usage(7, 1, &Value::Null), "kv_transfer_params": handle,
            }),
        )
    });
    let decode = MockEngine::start(|request| {
        let usage = usage(7, 2, &json!({"cached_tokens": 7}));
        if request.body["stream"] == true {
            let finish =
                json!({"id": "c", "choices": [{"index": 0, "text": " a b", "finish_reason": "length"}]});
            let last = json!({"id": "c", "choices": [], "usage": usage});
            return Canned::events(&[&finish.to_string(), &last.to_string(), "[DONE]"], End::Whole);
        }
        let choices = json!([{"index": 0, "text": " a b", "finish_reason": "length"}]);
        Canned::json(200, &json!({"id": "c", "choices": choices, "usage": usage}))
    });
    let (prefill, decode) = (prefill.await.unwrap(), decode.await.unwrap());
    let plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    (host, prefill, decode)
}

#[tokio::test]
async fn tokens_count_once_and_cached_ones_are_the_prefill_engines() {
    for (cached, told) in [
        (json!(3), json!({"cached_tokens": 3})),
        (json!(0), json!({"cached_tokens": 0})),
        // The prefill engine does not say, and transferred tokens are no cached ones.
        (Value::Null, Value::Null),
    ] {
        let (host, _prefill, _decode) = pair(&cached).await;
        for stream in [false, true] {
            let asked = json!({"model": "emulated", "prompt": "hi", "stream": stream});
            let answer = if stream {
                let events = host.client().stream("/v1/completions", &asked, &[]).await.unwrap();
                let events = events.rest().await.unwrap();
                serde_json::from_str(&events[1].data).unwrap()
            } else {
                host.client().post("/v1/completions", &asked).await.unwrap().json()
            };
            assert_eq!(answer["usage"], usage(7, 2, &told), "{cached}, stream {stream}");
        }
    }
}
