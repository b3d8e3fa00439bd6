//! What a leg of a request asks for, where the host moves KV: `kv_transfer_params.sluice`. Pure.

use serde_json::{Map, Value};
use sluice_engine_sdk::leg::{HoldOf, HoldWanted, ReceiveWanted, VERSION, Wanted};
use sluice_sim::engine::{Remote, Submission};

/// Where it stands, for messages.
const MEMBER: &str = "kv_transfer_params.sluice";

/// Reads a leg's wishes; `None` where there are none. What is wrong is said in words.
pub(crate) fn read(params: &Map<String, Value>, block_tokens: usize) -> Result<Option<Wanted>, String> {
    let Some(wanted) = params.get("sluice").filter(|wanted| !wanted.is_null()) else { return Ok(None) };
    // Before all else: a later version may have changed everything else.
    match wanted.get("version") {
        Some(version) if version.as_u64() == Some(u64::from(VERSION)) => {}
        version => {
            let version = version.map_or("missing".to_owned(), Value::to_string);
            return Err(format!("{MEMBER}.version is {version}; this engine speaks version {VERSION}"));
        }
    }
    let mut wanted: Wanted =
        serde_json::from_value(wanted.clone()).map_err(|error| format!("{MEMBER}: {error}"))?;
    let zero = |tokens: Option<u32>| tokens == Some(0);
    let hold = wanted.hold.as_ref().map(|hold| hold.position_tokens);
    let receive = wanted.receive.as_ref().map(|receive| receive.position_tokens);
    for (part, position_tokens) in [("hold", hold), ("receive", receive)] {
        if zero(position_tokens) {
            return Err(format!("{MEMBER}.{part}.position_tokens is 0"));
        }
    }
    // Of other engines' making: what cannot be told in blocks of this one is not moved.
    let fits = |tokens: u32| block_tokens.is_multiple_of(tokens as usize);
    let unfit = hold.into_iter().chain(receive).find(|tokens| !fits(*tokens));
    if let Some(tokens) = unfit {
        tracing::warn!(
            position_tokens = tokens,
            block_tokens,
            "positions do not divide blocks here: computed instead"
        );
    }
    wanted.hold = wanted.hold.filter(|hold| fits(hold.position_tokens));
    wanted.receive = wanted.receive.filter(|receive| fits(receive.position_tokens));
    Ok(Some(wanted))
}

/// Tells the engine what to wait for before, and what to hand over after.
pub(crate) fn shape(submission: &mut Submission, wanted: &Wanted) {
    let prompt = submission.prompt.len();
    submission.remote = wanted.receive.as_ref().map(|receive| Remote {
        tokens: end_token(receive, wanted.hold.as_ref(), prompt) as usize,
        threshold: receive.threshold_tokens as usize,
    });
    submission.keep = wanted.hold.as_ref().is_some_and(|hold| hold.of == HoldOf::Turn);
}

/// The token after the last that is received.
pub(super) fn end_token(receive: &ReceiveWanted, hold: Option<&HoldWanted>, prompt: usize) -> u32 {
    // Of a prefill the last token is computed, as of any prompt that is found in the cache.
    let computes_last = hold.is_some_and(|hold| hold.of == HoldOf::Prompt);
    let most = prompt as u32 - u32::from(computes_last);
    receive.tokens.map_or(most, |tokens| tokens.min(most))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn params() -> Value {
        let id = "0000000000000000000000000000002a";
        json!({"sluice": {"version": 1,
            "hold": {"transfer": id, "of": "prompt", "position_tokens": 16, "fill_ms": 1, "ttl_ms": 1,
                "margin_ms": 1, "renewable": false},
            "receive": {"transfer": id, "epoch": 1, "source": "d", "verb": "pull", "direction": "decode-to-prefill",
                "tokens": 99, "position_tokens": 8, "threshold_tokens": 64, "first_byte_ms": 1, "whole_ms": 1}}})
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (at, bad, part) in [
            ("/sluice/version", json!(2), "sluice.version is 2; this engine speaks version 1"),
            ("/sluice/version", json!("1"), "version is \"1\""),
            ("/sluice", json!({}), "version is missing"),
            ("/sluice", json!(7), "version is missing"),
            ("/sluice/hold/of", json!("all"), "unknown variant"),
            ("/sluice/receive/transfer", json!("2a"), "32 hexadecimal"),
            ("/sluice/receive/position_tokens", json!(0), "receive.position_tokens is 0"),
        ] {
            let mut value = params();
            *value.pointer_mut(at).unwrap() = bad;
            let error = read(value.as_object().unwrap(), 16).unwrap_err();
            assert!(error.contains(part), "{at}: {error}");
        }
        for nothing in [json!({}), json!({"sluice": null}), json!({"do_remote_prefill": true})] {
            assert_eq!(read(nothing.as_object().unwrap(), 16), Ok(None));
        }
    }

    #[test]
    fn what_cannot_be_told_in_its_blocks_an_engine_computes() {
        for (at, tokens, holds, receives) in [
            ("/sluice/hold/position_tokens", 12, false, true),
            ("/sluice/receive/position_tokens", 32, true, false),
            ("/sluice/receive/position_tokens", 1, true, true),
        ] {
            let mut value = params();
            *value.pointer_mut(at).unwrap() = json!(tokens);
            let wanted = read(value.as_object().unwrap(), 16).unwrap().unwrap();
            assert_eq!((wanted.hold.is_some(), wanted.receive.is_some()), (holds, receives), "{at} {tokens}");
        }
    }

    #[test]
    fn a_prefill_computes_its_last_token() {
        let wanted = read(params().as_object().unwrap(), 16).unwrap().unwrap();
        for (tokens, prompt, holds, end) in [
            (Some(99), 200, true, 99),
            (Some(99), 99, true, 98),
            (Some(99), 99, false, 99),
            (None, 50, false, 50),
            (Some(99), 50, true, 49),
            (None, 1, true, 0),
        ] {
            let receive = ReceiveWanted { tokens, ..wanted.receive.clone().unwrap() };
            let hold = holds.then(|| wanted.hold.clone().unwrap());
            assert_eq!(end_token(&receive, hold.as_ref(), prompt), end, "{tokens:?} of {prompt}");
        }
    }
}
