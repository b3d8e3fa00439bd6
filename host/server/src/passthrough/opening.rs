//! The start of a passed request's stream: which events open it without words, and which say that the engine failed.

use bytes::Bytes;

use crate::http::members::Members;
use crate::http::sse;
use crate::pipeline::stream_start::{First, tells_failure};

/// Types of events that engines send before they know whether there will be any words.
const OPENINGS: [&str; 5] =
    ["response.created", "response.queued", "response.in_progress", "message_start", "ping"];

/// The type of the event in which a response says that it failed.
const RESPONSE_FAILED: &[u8] = b"response.failed";

/// What an event is to its stream's start.
pub(super) fn first(event: &[u8]) -> First {
    if is_failure(event) {
        return First::Failure(failure(event));
    }
    match event_type(event) {
        Some(name) if OPENINGS.iter().any(|opening| opening.as_bytes() == name) => First::Opening,
        _ => First::Words,
    }
}

/// Whether an event says that the engine failed: by its type, or by an `error` in it.
pub(super) fn is_failure(event: &[u8]) -> bool {
    matches!(event_type(event), Some(b"error" | RESPONSE_FAILED)) || tells_failure(event)
}

/// An event's name, which vLLM writes before its payload; else the payload's `type`.
pub(super) fn event_type(event: &[u8]) -> Option<&[u8]> {
    let named = event.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"event:"));
    if let Some(name) = named {
        return Some(name.trim_ascii());
    }
    let members = Members::parse(sse::payload(event)?).ok()?;
    let value = members.get("type")?.get().as_bytes();
    value.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

/// The JSON that holds the `error`: a failed response's own, or the whole payload.
fn failure(event: &[u8]) -> Bytes {
    let payload = sse::payload(event).unwrap_or_default();
    let response = Members::parse(payload)
        .ok()
        .and_then(|members| members.get("response").map(|response| response.get().as_bytes()));
    Bytes::copy_from_slice(response.unwrap_or(payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_events_are_told_apart() {
        let failure = |payload: &'static str| First::Failure(Bytes::from_static(payload.as_bytes()));
        for (event, expected) in [
            ("event: response.created\ndata: {\"response\":{\"error\":null}}\n\n", First::Opening),
            ("data: {\"type\":\"response.in_progress\"}\n\n", First::Opening),
            ("event: message_start\r\ndata: {}\r\n\r\n", First::Opening),
            ("event: ping\ndata: {\"type\":\"ping\"}\n\n", First::Opening),
            ("event: response.output_text.delta\ndata: {\"delta\":\"error\"}\n\n", First::Words),
            ("event: content_block_start\ndata: {}\n\n", First::Words),
            ("data: {\"type\":\"response.completed\",\"response\":{}}\n\n", First::Words),
            ("data: what is this\n\n", First::Words),
            (
                "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"x\"}}\n\n",
                failure(r#"{"type":"error","error":{"message":"x"}}"#),
            ),
            (
                "data: {\"type\":\"error\",\"message\":\"x\"}\n\n",
                failure(r#"{"type":"error","message":"x"}"#),
            ),
            ("data: {\"error\":{\"code\":500}}\n\n", failure(r#"{"error":{"code":500}}"#)),
            (
                "event: response.failed\ndata: {\"response\":{\"error\":{\"message\":\"x\"}}}\n\n",
                failure(r#"{"error":{"message":"x"}}"#),
            ),
        ] {
            assert_eq!(first(event.as_bytes()), expected, "{event}");
        }
    }
}
