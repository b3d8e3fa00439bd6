//! An engine's whole answer: the handle in it, and what of it a client gets.

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use sluice::handle::Handle;
use sluice::http::sse::ENGINE_INTERNAL;
use sluice::http::token_ids::Found;
use sluice::pipeline::whole_as_passed;

use crate::strict;

/// A handle is good only if no member is missing whose absence hangs or ends an engine; an answer reaches the client
/// without what is between host and engine, and otherwise as it came. Says whether the input is an answer at all.
pub fn check(input: &[u8]) -> bool {
    ids_leave(input);
    let Some(members) = strict::agreed_members(input) else {
        assert!(whole_as_passed(Bytes::copy_from_slice(input)).is_err(), "what is no object is no answer");
        return false;
    };
    if let Ok(handle) = Handle::from_answer(&members) {
        good(handle.json());
        assert_eq!(members.get("kv_transfer_params").map(|value| value.get()), Some(handle.json()));
    }
    let Ok(passed) = whole_as_passed(Bytes::copy_from_slice(input)) else { return false };
    assert!(members.get("error").is_none() && members.get("choices").is_some());
    let after = strict::agreed_members(&passed).expect("what is passed on can be read");
    for name in ENGINE_INTERNAL {
        assert!(!after.has(name), "{name} goes to a client");
    }
    if !ENGINE_INTERNAL.iter().any(|name| members.has(name)) {
        assert_eq!(passed, input, "an answer without internal members is passed as it came");
    }
    let Some(strict_before) = strict::object(input) else { return true };
    let strict_after = strict::object(&passed).expect("what was JSON to the letter still is");
    let kept = strict_before.iter().filter(|(name, _)| !ENGINE_INTERNAL.contains(&name.as_str()));
    let texts = |(name, value): (&String, &&RawValue)| (name.clone(), value.get().to_owned());
    assert!(kept.map(texts).eq(strict_after.iter().map(texts)), "members differ");
    true
}

/// Id lists leave at one go, and take nothing along.
fn ids_leave(input: &[u8]) {
    let Ok(found) = Found::read(input) else { return };
    let Some(cleaned) = found.without_ids(input) else { return };
    let again = Found::read(&cleaned).expect("what could be read still can be");
    assert!(again.without_ids(&cleaned).is_none(), "lists are left");
    let Some(before) = strict::object(input) else { return };
    let after = strict::object(&cleaned).expect("what was JSON to the letter still is");
    assert!(before.keys().eq(after.keys()), "members differ");
    for (name, value) in before.iter().filter(|(name, _)| *name != "choices") {
        let left = after[name].get();
        assert!(left == value.get() || name == "prompt_token_ids" && left == "null", "{name} differs");
    }
}

fn good(handle: &str) {
    // Other members may hold what only engines can read, such as a number beyond all bounds.
    let members = strict::object(handle.as_bytes()).expect("a handle is JSON to the letter");
    let read = |raw: &&RawValue| serde_json::from_str::<Value>(raw.get()).expect("what is read is in bounds");
    let value = |name: &str| members.get(name).map(read).unwrap_or_default();
    let text = |name: &str| value(name).as_str().unwrap_or_default().to_owned();
    assert_eq!(value("do_remote_prefill"), true);
    assert_ne!(value("do_remote_decode"), true);
    assert!(!text("remote_engine_id").is_empty() && !text("remote_request_id").is_empty());
    assert!(!text("remote_host").is_empty() && !text("remote_host").contains(char::is_whitespace));
    assert!(value("remote_port").as_u64().is_some_and(|port| (1..=65_535).contains(&port)));
    assert!(value("remote_block_ids").as_array().is_some_and(|groups| !groups.is_empty()));
}
