//! How a turn's end is told, and read: from engines of canned words that keep turns by themselves.

use serde_json::{Value, json};
use sluice_harness::mock_engine::End;
use sluice_harness::{Canned, EventStream, Host, HostPlan, MockEngine, Mode, PolicyFile, Recorded};

use crate::SOON;

/// Of the prompt, and of the answer.
const IDS: (std::ops::Range<u32>, std::ops::Range<u32>) = (0..40, 100..108);

fn handle() -> Value {
    json!({
        "do_remote_prefill": false, "do_remote_decode": true, "remote_engine_id": "engine-d", "remote_request_id": "cmpl-d",
        "remote_host": "127.0.0.1", "remote_port": 5700, "remote_block_ids": [[7, 8, 9]], "tp_size": 1, "remote_num_tokens": 47,
        "remote_blocks_expiry_time": 3_220.9,
    })
}

fn without(name: &str) -> Value {
    let mut handle = handle();
    handle.as_object_mut().unwrap().remove(name);
    handle
}

fn choice(text: &str, ids: &[u32], finish: Value, stop: Value) -> Value {
    json!({"index": 0, "text": text, "token_ids": ids, "finish_reason": finish, "stop_reason": stop})
}

fn whole(stop: Value, params: Value) -> Canned {
    let mut choice = choice(" words", &IDS.1.collect::<Vec<_>>(), "stop".into(), stop);
    choice["prompt_token_ids"] = json!(IDS.0.collect::<Vec<_>>());
    let usage = json!({"prompt_tokens": 40, "total_tokens": 48, "completion_tokens": 8});
    Canned::json(200, &json!({"choices": [choice], "usage": usage, "kv_transfer_params": params}))
}

/// A stream of a turn with so many bytes of words in it, and what comes behind its handle.
fn stream(bytes: usize, behind: &[&str], end: End) -> Canned {
    let mut first = choice(" w", &IDS.1.collect::<Vec<_>>(), Value::Null, Value::Null);
    first["prompt_token_ids"] = json!(IDS.0.collect::<Vec<_>>());
    let mut events = vec![json!({"choices": [first]}).to_string()];
    let piece = "w".repeat(16 * 1024);
    for _ in 0..bytes / piece.len() {
        events.push(json!({"choices": [choice(&piece, &[], Value::Null, Value::Null)]}).to_string());
    }
    let last = choice("", &[], "stop".into(), Value::Null);
    events.push(json!({"choices": [last], "kv_transfer_params": handle()}).to_string());
    events.extend(behind.iter().map(|event| (*event).to_owned()));
    Canned::events(&events.iter().map(String::as_str).collect::<Vec<_>>(), end)
}

/// A pair whose decode engine answers each prompt as it says.
struct Pair {
    host: Host,
    prefill: MockEngine,
    _decode: MockEngine,
}

impl Pair {
    async fn answering(answer: impl Fn(&str) -> Canned + Send + Sync + 'static) -> Self {
        let script = move |asked: &Recorded| match () {
            () if asked.path == "/tokenize" => {
                let ids: Vec<u32> = IDS.0.chain(IDS.1).collect();
                Canned::json(200, &json!({"count": 48, "max_model_len": 4_096, "tokens": ids}))
            }
            // So blocks are given back.
            () if asked.body["model"] != "emulated" => {
                Canned::json(404, &json!({"error": {"message": "none"}}))
            }
            () if asked.body["kv_transfer_params"]["remote_num_tokens"] == 32 => {
                Canned::json(500, &json!({"error": {"message": "in the middle of reading"}}))
            }
            () if asked.is_prefill() => {
                let mut answer: Value = serde_json::from_slice(&Canned::prefilled().pieces.concat()).unwrap();
                answer["choices"][0]["prompt_token_ids"] = json!(IDS.0.collect::<Vec<_>>());
                Canned::json(200, &answer)
            }
            () => answer(asked.body["prompt"].as_str().unwrap_or_default()),
        };
        let script = std::sync::Arc::new(script);
        let start = async || {
            let script = script.clone();
            MockEngine::of_version("0.33.0", move |asked| script(asked)).await.unwrap()
        };
        let (prefill, _decode) = (start().await, start().await);
        let plan = HostPlan::new(Mode::Bidirectional).policy("keeps-turns");
        let mut plan = plan.worker("prefill", prefill.url()).worker("decode", _decode.url());
        plan.server.push_str("connect_timeout_ms = 1_000\n");
        // Usable for a second.
        plan.pool.push_str("decoder_ttl_ms = 8_000\n");
        let guest = PolicyFile::guest("keeps-turns", "keeps-turns").unwrap();
        let host = Host::start(&plan, &[guest]).await.unwrap();
        host.until_ready().await.unwrap();
        Self { host, prefill, _decode }
    }

    fn body(prompt: &str, streams: bool) -> Value {
        json!({"model": "emulated", "prompt": prompt, "max_tokens": 8, "conversation_id": prompt, "stream": streams})
    }

    async fn ask(&self, prompt: &str) {
        let answer = self.host.client().post("/v1/completions", &Self::body(prompt, false)).await.unwrap();
        assert!(answer.status == 200 || answer.status == 502, "{answer:?}");
    }

    async fn stream(&self, prompt: &str) -> EventStream {
        self.host.client().stream("/v1/completions", &Self::body(prompt, true), &[]).await.unwrap()
    }

    async fn count(&self, name: &str, label: (&str, &str)) -> f64 {
        self.host.metrics().await.unwrap().sum(name, &[label])
    }

    async fn until(&self, name: &str, label: (&str, &str), count: f64) {
        self.host.until_metric(name, &[label], |now| now == count, SOON).await.unwrap();
    }

    /// Handles that were given back: in requests that the prefill engine refused.
    fn given_back(&self) -> usize {
        self.prefill.seen().iter().filter(|asked| asked.body["kv_transfer_params"] == ended()).count()
    }

    /// Nothing is counted as held by the decode worker.
    async fn nothing_held(&self) {
        for name in ["sluice_worker_handles", "sluice_worker_kept_tokens"] {
            self.until(name, ("worker", "decode-0"), 0.0).await;
        }
    }
}

fn ended() -> Value {
    let mut handle = handle();
    (handle["do_remote_prefill"], handle["do_remote_decode"]) = (true.into(), false.into());
    handle
}

const NOT_KEPT: &str = "sluice_holds_not_kept_total";
const MISSES: &str = "sluice_kept_turn_misses_total";

/// vLLM finds stop strings outside of its engine, which keeps nothing then: nobody need be told of that.
#[tokio::test]
async fn a_turn_that_a_stop_string_ended_is_kept_by_nobody() {
    let pair = Pair::answering(|prompt| {
        whole(if prompt == "string" { "###".into() } else { 17.into() }, Value::Null)
    })
    .await;
    for (prompt, misses, named) in [("string", 1.0, 0.0), ("token", 1.0, 1.0)] {
        pair.ask(prompt).await;
        assert_eq!(pair.count(MISSES, ("reason", "stopped-by-text")).await, misses, "{prompt}");
        assert_eq!(
            pair.count("sluice_fallbacks_total", ("reason", "turn_not_kept_by_engine")).await,
            named,
            "{prompt}"
        );
    }
}

/// Without the time of its end a prefill engine would read it after that, too.
#[tokio::test]
async fn a_turn_that_does_not_say_its_end_is_let_go() {
    let pair = Pair::answering(|prompt| match prompt {
        "endless" => whole(Value::Null, without("remote_blocks_expiry_time")),
        "no place" => whole(Value::Null, without("remote_host")),
        _ => whole(Value::Null, handle()),
    })
    .await;
    pair.ask("endless").await;
    pair.until(NOT_KEPT, ("reason", "unwanted"), 1.0).await;
    assert_eq!(pair.count(MISSES, ("reason", "no-expiry-time")).await, 1.0);
    pair.nothing_held().await;
    pair.ask("no place").await;
    assert_eq!(pair.count("sluice_holds_unreleased_total", ("reason", "unusable")).await, 1.0);
    pair.ask("good").await;
    assert_eq!(pair.count("sluice_kept_turns_total", ("event", "kept")).await, 1.0);
}

/// Whatever keeps an answer from its end here, a hold that was told of is let go.
#[tokio::test]
async fn a_turn_that_is_cut_off_behind_its_handle_is_let_go() {
    const ERROR: &str = r#"{"error":{"message":"too bad","code":500}}"#;
    for prompt in ["leaves", "breaks", "error", "whole"] {
        // Each with engines that have not failed yet.
        let pair = Pair::answering(|prompt| match prompt {
            "leaves" => stream(0, &[], End::Never),
            "breaks" => stream(0, &[], End::BrokenOff),
            "error" => stream(0, &[ERROR, "[DONE]"], End::Whole),
            _ => {
                let answer =
                    json!({"error": {"message": "x"}, "choices": [], "kv_transfer_params": handle()});
                Canned::json(200, &answer)
            }
        })
        .await;
        if prompt == "whole" {
            pair.ask(prompt).await;
        } else {
            let mut stream = pair.stream(prompt).await;
            if prompt == "leaves" {
                // The last of what comes.
                while !stream.next().await.unwrap().unwrap().data.contains("\"stop\"") {}
                drop(stream);
            } else {
                stream.rest().await.unwrap();
            }
        }
        pair.host.until_metric(NOT_KEPT, &[("reason", "cut_off")], |count| count >= 1.0, SOON).await.unwrap();
        pair.nothing_held().await;
        // A whole answer is tried again, until its pair is avoided: then nobody can be told.
        let unreleased = pair.count("sluice_holds_unreleased_total", ("pool", "main")).await;
        assert_eq!(unreleased > 0.0, prompt == "whole", "{unreleased} {prompt}");
        assert!(pair.given_back() > 0, "{prompt}");
        assert_eq!(pair.count("sluice_kept_turns_total", ("event", "kept")).await, 0.0);
    }
}

/// A leg that failed may have its engine read on: what it reads stays, and its holder is not safe to stop, until that has let it go.
#[tokio::test]
async fn what_may_be_being_read_counts_with_its_holder() {
    let pair = Pair::answering(|_| whole(Value::Null, handle())).await;
    pair.ask("a").await;
    pair.ask("a").await;
    let decode = ("worker", "decode-0");
    assert_eq!(pair.count("sluice_holds_unreleased_total", ("reason", "may_be_read")).await, 1.0);
    // The second turn is kept, too; not for as long.
    let metrics = pair.host.metrics().await.unwrap();
    let of_decode = |name| metrics.sum(name, &[decode]);
    let before = (of_decode("sluice_worker_handles"), of_decode("sluice_worker_kept_tokens"));
    assert_eq!(before, (2.0, 94.0));
    pair.until("sluice_kept_turns_total", ("event", "expired"), 1.0).await;
    for (name, left) in [("sluice_worker_handles", 1.0), ("sluice_worker_kept_tokens", 47.0)] {
        pair.until(name, decode, left).await;
    }
    pair.host.admin().post("/admin/workers/main/decode-0/drain", &json!({})).await.unwrap();
    pair.nothing_held().await;
    assert_eq!(pair.given_back(), 1, "the one that nobody read");
}

/// How slowly a client reads says nothing of how long its engine keeps the turn.
#[tokio::test]
async fn a_slow_reader_does_not_lengthen_a_hold() {
    let pair = Pair::answering(|prompt| match prompt {
        "slow" => stream(48 << 20, &["[DONE]"], End::Whole),
        "fast" => stream(0, &["[DONE]"], End::Whole),
        _ => whole(Value::Null, handle()),
    })
    .await;
    let mut slow = pair.stream("slow").await;
    slow.next().await.unwrap().unwrap();
    // What is kept meanwhile, one after the other, expires in a second each.
    for turn in ["one", "other"] {
        let before = pair.count("sluice_kept_turns_total", ("event", "expired")).await;
        pair.ask(turn).await;
        pair.until("sluice_kept_turns_total", ("event", "expired"), before + 1.0).await;
    }
    assert_eq!(slow.rest().await.unwrap().last().map(|event| event.data.as_str()), Some("[DONE]"));
    pair.until(NOT_KEPT, ("reason", "unwanted"), 1.0).await;
    assert_eq!(pair.count("sluice_kept_turns_total", ("event", "kept")).await, 2.0);
    pair.stream("fast").await.rest().await.unwrap();
    pair.until("sluice_kept_turns_total", ("event", "kept"), 3.0).await;
}
