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

/// Of a turn of so many tokens.
fn given_back(tokens: u32) -> Value {
    let blocks: Vec<_> = (7..7 + tokens.div_ceil(16)).collect();
    json!({
        "do_remote_prefill": false, "do_remote_decode": true, "remote_engine_id": "engine-d", "remote_request_id": "cmpl-d",
        "remote_host": "127.0.0.1", "remote_port": 5700, "remote_block_ids": [blocks], "tp_size": 1, "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": 3_220.9,
    })
}

fn no_such_model() -> Canned {
    Canned::json(404, &json!({"error": {"message": "no such model"}}))
}

/// A decode engine that reads what is meant. It keeps what it fetched, and tells ids where it is asked.
async fn decode(version: &'static str) -> MockEngine {
    let script = |asked: &Recorded| {
        // So blocks are given back.
        if asked.body["model"] != "emulated" {
            return no_such_model();
        }
        let read: Vec<u32> = if asked.body["prompt"] == "hello" { FIRST.collect() } else { second() };
        let mut choice = json!({"index": 0, "text": " words", "finish_reason": "length"});
        if asked.body["return_token_ids"] == true {
            choice["token_ids"] = json!(ANSWER.collect::<Vec<_>>());
            choice["prompt_token_ids"] = json!(read);
        }
        let fetched = asked.body["kv_transfer_params"]["do_remote_prefill"] == true;
        let answer = json!({
            "id": "cmpl-d", "object": "text_completion", "model": "emulated", "choices": [choice],
            "usage": {"prompt_tokens": read.len(), "total_tokens": read.len() + 8, "completion_tokens": 8},
            "kv_transfer_params": if fetched { given_back(read.len() as u32 + 7) } else { Value::Null },
        });
        Canned::json(200, &answer)
    };
    MockEngine::of_version(version, script).await.unwrap()
}

/// What a prefill engine says that it read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    AsItSays,
    /// The same as far as it fetches.
    OtherwiseLater,
    Otherwise,
    Untold,
    /// The first turn's prompt already, which decode read as it says.
    FirstOtherwise,
    FirstUntold,
}

impl Reads {
    /// Of a leg that fetches or does not; `None`: it does not tell.
    fn ids(self, fetches: bool) -> Option<Vec<u32>> {
        let (mut first, mut second) = (FIRST.collect::<Vec<_>>(), second());
        match self {
            Self::AsItSays => {}
            Self::OtherwiseLater => second[50] = 9,
            Self::Otherwise => second[20] = 9,
            Self::Untold if fetches => return None,
            Self::FirstOtherwise => first[39] = 9,
            Self::FirstUntold => return None,
            Self::Untold => {}
        }
        Some(if fetches { second } else { first })
    }

    /// Whether the first turn is kept, to be fetched for the second.
    fn first_is_kept(self) -> bool {
        !matches!(self, Self::FirstOtherwise | Self::FirstUntold)
    }

    /// Whether decode gets what prefill made of the second prompt.
    fn second_is_right(self) -> bool {
        !matches!(self, Self::Otherwise | Self::Untold)
    }
}

async fn prefill(version: &'static str, reads: Reads) -> MockEngine {
    let script = move |asked: &Recorded| {
        if asked.path == "/tokenize" {
            return Canned::json(200, &json!({"count": 68, "max_model_len": 4_096, "tokens": second()}));
        }
        // So blocks are given back.
        if asked.body["model"] != "emulated" {
            return no_such_model();
        }
        assert!(asked.body["kv_transfer_params"]["prompt_token_ids"].is_null(), "prefill reads by itself");
        let mut answer: Value = serde_json::from_slice(&Canned::prefilled().pieces.concat()).unwrap();
        let fetches = asked.body["kv_transfer_params"]["remote_engine_id"] == "engine-d";
        if let Some(ids) = reads.ids(fetches).filter(|_| asked.body["return_token_ids"] == true) {
            answer["choices"][0]["prompt_token_ids"] = json!(ids);
        }
        Canned::json(200, &answer)
    };
    MockEngine::of_version(version, script).await.unwrap()
}

async fn ask(host: &Host, text: &str) -> Value {
    let body = json!({"model": "emulated", "prompt": text, "max_tokens": 8, "conversation_id": "c"});
    let answer = host.client().post("/v1/completions", &body).await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

const ALL: [Reads; 6] = [
    Reads::AsItSays,
    Reads::OtherwiseLater,
    Reads::Otherwise,
    Reads::Untold,
    Reads::FirstOtherwise,
    Reads::FirstUntold,
];

#[tokio::test]
async fn what_is_not_known_to_be_right_is_not_used() {
    for (version, reads) in
        ["0.32.0", "0.33.0"].into_iter().flat_map(|version| ALL.map(|reads| (version, reads)))
    {
        let what = format!("{version} {reads:?}");
        let (prefill, decode) = (prefill(version, reads).await, decode(version).await);
        let guest = PolicyFile::guest("keeps-turns", "keeps-turns").unwrap();
        let plan = HostPlan::new(Mode::Bidirectional).policy("keeps-turns");
        let plan = plan.worker("prefill", prefill.url()).worker("decode", decode.url());
        let host = Host::start(&plan, &[guest]).await.unwrap();
        host.until_ready().await.unwrap();
        for text in ["hello", "hello again"] {
            let seen = ask(&host, text).await;
            assert!(
                seen["kv_transfer_params"].is_null() && seen["choices"][0]["token_ids"].is_null(),
                "{what}: {seen}"
            );
        }
        let is_leg = |asked: &Recorded| asked.path != "/tokenize" && asked.body["model"] == "emulated";
        let legs: Vec<_> = prefill.seen().into_iter().filter(is_leg).collect();
        let asked: Vec<_> = legs.iter().map(|leg| &leg.body["return_token_ids"]).collect();
        assert_eq!(asked, [&Value::Bool(true); 2], "{what}");
        if reads.first_is_kept() {
            // All whole blocks; and prefill keeps what it makes of them.
            let mut offered = given_back(47);
            (offered["remote_num_tokens"], offered["remote_block_ids"]) = (32.into(), json!([[7, 8]]));
            assert_eq!(legs[1].body["kv_transfer_params"], offered, "{what}");
        } else {
            assert!(legs[1].body["kv_transfer_params"]["remote_engine_id"].is_null(), "{what}");
        }
        let generating: Vec<_> =
            decode.seen().into_iter().filter(|leg| leg.body["max_tokens"] == 8).collect();
        let params: Vec<_> = generating.iter().map(|leg| &leg.body["kv_transfer_params"]).collect();
        let fetched: Vec<_> = params.iter().map(|params| params["remote_engine_id"] == "engine-p").collect();
        assert_eq!(fetched, [true, reads.second_is_right()], "{what}");
        // Decode cannot read otherwise than prefill has, where it takes ids.
        let told = reads.ids(false).filter(|_| version == "0.33.0");
        assert_eq!(params[0]["prompt_token_ids"], json!(told), "{what}");

        let metrics = host.metrics().await.unwrap();
        let fallbacks = |reason| metrics.sum("sluice_fallbacks_total", &[("reason", reason)]);
        assert_eq!(fallbacks("read_otherwise"), if reads.second_is_right() { 0.0 } else { 1.0 }, "{what}");
        let differ = match reads {
            // Each turn's answer, none of which is kept.
            Reads::FirstOtherwise => 2.0,
            Reads::OtherwiseLater => 1.0,
            _ => 0.0,
        };
        assert_eq!(fallbacks("decode_read_otherwise"), differ, "{what}");
        // It may have cached what it computed: nobody is sent there any more.
        let draining = metrics.sum("sluice_worker_draining", &[("worker", "prefill-0")]);
        assert_eq!(draining == 1.0, reads == Reads::Otherwise, "{what}");
        // What it keeps of the turn is read, or given back.
        let prefill = [("worker", "prefill-0")];
        host.until_metric("sluice_worker_handles", &prefill, |handles| handles == 0.0, SOON).await.unwrap();
    }
}

/// A client's own word on token ids is its engine's to read. It hides nothing of what the host must know, and nobody else loses
/// anything by it.
#[tokio::test]
async fn what_a_client_says_of_token_ids_is_its_own_matter() {
    for said in
        [json!(true), json!(false), Value::Null, json!(0), json!(1), json!("no"), json!("yes"), json!([])]
    {
        let (prefill, decode) = (prefill("0.32.0", Reads::AsItSays).await, decode("0.32.0").await);
        let guest = PolicyFile::guest("keeps-turns", "keeps-turns").unwrap();
        let plan = HostPlan::new(Mode::Bidirectional).policy("keeps-turns");
        let plan = plan.worker("prefill", prefill.url()).worker("decode", decode.url());
        let host = Host::start(&plan, &[guest]).await.unwrap();
        host.until_ready().await.unwrap();
        ask(&host, "hello").await;
        let body = json!({
            "model": "emulated", "prompt": "hello again", "max_tokens": 8, "conversation_id": "c", "return_token_ids": said,
        });
        let answer = host.client().post("/v1/completions", &body).await.unwrap();
        let sees_ids = answer.json()["choices"][0]["token_ids"].is_array();
        assert_eq!((answer.status, sees_ids), (200, said == true), "{said}");
        let legs = |engine: &MockEngine, max_tokens: u32| {
            let legs = engine.seen().into_iter().filter(|leg| leg.body["max_tokens"] == max_tokens);
            legs.map(|leg| leg.body["return_token_ids"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(legs(&prefill, 1)[1], true, "{said}");
        let is_known = said.is_boolean() || said.is_null();
        assert_eq!(legs(&decode, 8)[1], if is_known { json!(true) } else { said.clone() });
        // Whoever asks next finds reuse as it was.
        let metrics = host.metrics().await.unwrap();
        let fallbacks = metrics.sum("sluice_fallbacks_total", &[("reason", "read_otherwise")]);
        let count = |event| metrics.sum("sluice_kept_turns_total", &[("event", event)]);
        let kept = if is_known { 2.0 } else { 1.0 };
        assert_eq!((fallbacks, count("taken"), count("kept")), (0.0, 1.0, kept), "{said}");
    }
}
