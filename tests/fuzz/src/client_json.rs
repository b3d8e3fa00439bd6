//! A client's body: read, and written anew for each leg.

use bytes::Bytes;
use hyper::HeaderMap;
use sluice::http::members::Members;
use sluice::request::{ClientRequest, Endpoint};

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
/// a request at all.
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
