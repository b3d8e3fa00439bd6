//! A client's body: read, and written anew for each leg.

use bytes::Bytes;
use hyper::HeaderMap;
use serde_json::Value;
use sluice::http::members::Members;
use sluice::request::{ClientRequest, Endpoint};
use sluice_core::history::scope::Scope;

use crate::strict;

/// What a client must not set. The first is the host's to set.
const STRIPPED: [&str; 10] = [
    "kv_transfer_params",
    "ec_transfer_params",
    "cache_salt",
    "request_id",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "data_parallel_rank",
    "routed_dp_rank",
    "extra_body",
];

/// What only the host reads.
const READ_BY_THE_HOST: [&str; 2] = ["conversation_id", "conversation"];

/// What a prefill leg says in its own way.
const OF_THE_LEG: [&str; 5] =
    ["max_tokens", "max_completion_tokens", "stream", "stream_options", "min_tokens"];

const HANDLE: &str = r#"{"do_remote_prefill":true,"remote_block_ids":[[1,2]]}"#;

/// A body is read as serde_json reads it; each leg's body says the same, less what is stripped. Says whether the input is
/// a request at all. Media in it are never taken for text.
pub fn check(input: &[u8]) -> bool {
    if strict::agreed_members(input).is_none() {
        return false;
    }
    let body = Bytes::copy_from_slice(input);
    let mut is_request = false;
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        let Ok(request) = ClientRequest::parse(endpoint, &HeaderMap::new(), &body) else { continue };
        is_request = true;
        assert!(request.prompt_text().len() <= input.len());
        media(&request, input);
        written(input, &request.body(None).joined(), None, &[]);
        written(input, &request.body(Some(HANDLE)).joined(), Some(HANDLE), &[]);
        let prefill = request.prefill_body(sluice::handle::ASKED).joined();
        written(input, &prefill, Some(r#"{"do_remote_decode":true,"do_remote_prefill":false}"#), &OF_THE_LEG);
        let members = Members::parse(&prefill).expect("a prefill body is an object");
        for (name, text) in [("stream", "false"), ("max_tokens", "1")] {
            assert_eq!(members.get(name).map(|value| value.get()), Some(text), "{name}");
        }
        assert!(!members.has("stream_options") && !members.has("min_tokens"));
    }
    is_request
}

/// What has no media by its digests has none by what an engine looks for: a type, a member that stands for one, a name of media that
/// was sent before, embeddings in place of a prompt.
fn media(request: &ClientRequest<'_>, input: &[u8]) {
    const MARKS: [&str; 9] = [
        "uuid",
        "image_url",
        "input_image",
        "image_embeds",
        "audio_url",
        "input_audio",
        "video_url",
        "prompt_embeds",
        "image_pil",
    ];
    let scope = Scope {
        tenant: String::new(),
        model: String::new(),
        adapter: None,
        salt: None,
        endpoint: request.endpoint.path().into(),
    };
    let Ok(body) = serde_json::from_slice::<Value>(input) else { return };
    if request.history(&scope).map_or(true, |chain| chain.has_media()) {
        return;
    }
    assert!(body["prompt_embeds"].is_null());
    if request.endpoint == Endpoint::Completions {
        let is_prompt = |prompt: &Value| prompt.is_string() || prompt.is_number() || prompt.is_array();
        assert!(is_prompt(&body["prompt"]));
        assert!(body["prompt"].as_array().is_none_or(|prompts| prompts.iter().all(is_prompt)));
        return;
    }
    for message in body["messages"].as_array().into_iter().flatten() {
        assert!(message.is_object() && message["audio"].as_object().is_none());
        let content = &message["content"];
        assert!(content.is_null() || content.is_string() || content.is_array());
        for part in content.as_array().into_iter().flatten().filter(|part| !part.is_string()) {
            let members = part.as_object().expect("a part is an object");
            let kind = part["type"].as_str().expect("a part says what it is");
            assert!(["text", "input_text", "output_text", "refusal", "thinking"].contains(&kind), "{kind}");
            assert!(MARKS.iter().all(|mark| !members.contains_key(*mark)), "{part}");
        }
    }
}

/// Checks a leg's body against the client's.
fn written(input: &[u8], output: &[u8], handle: Option<&str>, of_the_leg: &[&str]) {
    let before = Members::parse(input).expect("it was read");
    let after = Members::parse(output).expect("what is written can be read");
    assert_eq!(after.get("kv_transfer_params").map(|value| value.get()), handle);
    for name in STRIPPED.iter().skip(1).chain(&READ_BY_THE_HOST) {
        assert!(!after.has(name), "{name} goes to an engine");
    }
    let Some(strict_before) = strict::object(input) else { return };
    let strict_after = strict::object(output).expect("what was JSON to the letter still is");
    let is_kept = |name: &&String| {
        let name = name.as_str();
        !STRIPPED.contains(&name) && !READ_BY_THE_HOST.contains(&name) && !of_the_leg.contains(&name)
    };
    for name in strict_before.keys().filter(is_kept) {
        let (before, after) = (before.get(name), after.get(name));
        assert_eq!(before.map(|value| value.get()), after.map(|value| value.get()), "{name:?}");
    }
    for name in strict_after.keys().filter(is_kept) {
        assert!(strict_before.contains_key(name), "{name:?} comes from nowhere");
    }
}
