//! An engine's own refusal, in its own words.

use hyper::StatusCode;
use hyper::header::RETRY_AFTER;
use hyper::http::response::Parts;
use sluice_core::failure::Failure;

use super::attempt::Failed;
use crate::fleet::{Leg, Worker};
use crate::http::error::{ApiError, Blame};
use crate::http::members::Members;

/// The longest message of an engine passed on, in characters. vLLM's longest, of schema errors, are under 2,000.
const ENGINE_WORDS_AT_MOST: usize = 4_000;

/// An answer that is no 200. A 4xx is the client's trouble, which the engine found; all else, be it a redirect, is the
/// engine's.
pub(crate) fn refusal(leg: &mut Leg, blame: Blame, head: &Parts, body: &[u8]) -> Failed {
    let worker = leg.worker().clone();
    let mut error = told(&worker, blame, head.status, body);
    let seconds = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    error.retry_after_ms = seconds.map(|seconds| seconds.saturating_mul(1_000));
    let failure = failure_of(head.status);
    leg.failed(failure, &error.message);
    Failed { failure, worker: Some(worker.id), error }
}

/// What a status that is no 200 says of an attempt.
pub(crate) fn failure_of(status: StatusCode) -> Failure {
    match status.as_u16() {
        401 | 403 | 404 | 408 | 429 => Failure::RefusedByOne,
        400..500 => Failure::Refused,
        _ => Failure::ServerError,
    }
}

/// What the client is told: the engine's own words where they are found, ours otherwise.
pub(crate) fn told(worker: &Worker, blame: Blame, status: StatusCode, body: &[u8]) -> ApiError {
    let shown =
        if status.is_client_error() || status.is_server_error() { status } else { StatusCode::BAD_GATEWAY };
    let (blame, code) = if status.is_client_error() {
        (Blame::Client, "refused_by_engine")
    } else {
        (blame, "engine_failed")
    };
    let (message, param) = engine_words(body).unwrap_or_else(|| {
        (format!("{} worker {:?} answered {}", worker.role.name(), worker.name, status.as_u16()), None)
    });
    let message = message.chars().take(ENGINE_WORDS_AT_MOST).collect::<String>();
    ApiError { param, ..ApiError::new(shown, blame, code, message) }
}

/// The message of an error, in the shapes that vLLM has used: `error.message`, `message`, `detail`.
fn engine_words(body: &[u8]) -> Option<(String, Option<String>)> {
    #[derive(serde::Deserialize)]
    struct EngineError {
        message: String,
        #[serde(default)]
        param: Option<String>,
    }
    let members = Members::parse(body).ok()?;
    if let Ok(Some(EngineError { message, param })) = members.read("error") {
        return Some((message, param));
    }
    let message = members.read::<String>("message").ok().flatten();
    message
        .or_else(|| members.get("detail").map(|detail| detail.get().to_owned()))
        .map(|message| (message, None))
}

/// The status that an error event in a stream gives itself, as vLLM does in `error.code`.
pub(super) fn status_in_error(payload: &[u8]) -> Option<StatusCode> {
    #[derive(serde::Deserialize)]
    struct EngineError {
        code: u16,
    }
    let error: EngineError = Members::parse(payload).ok()?.read("error").ok()??;
    StatusCode::from_u16(error.code).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_words_are_found() {
        for (body, expected) in [
            (r#"{"error":{"message":"too long","param":"prompt"}}"#, Some(("too long", Some("prompt")))),
            (r#"{"object":"error","message":"old shape"}"#, Some(("old shape", None))),
            (r#"{"detail":"Not Found"}"#, Some(("\"Not Found\"", None))),
            ("<html>", None),
            ("{}", None),
        ] {
            let found = engine_words(body.as_bytes());
            let found = found.as_ref().map(|(message, param)| (message.as_str(), param.as_deref()));
            assert_eq!(found, expected, "{body}");
        }
    }

    #[test]
    fn error_events_tell_their_status() {
        for (payload, expected) in [
            (r#"{"error":{"message":"x","code":500}}"#, Some(500)),
            (r#"{"error":{"message":"x","code":400}}"#, Some(400)),
            (r#"{"error":{"message":"x","code":"internal"}}"#, None),
            (r#"{"error":"x"}"#, None),
            ("x", None),
        ] {
            let status = status_in_error(payload.as_bytes()).map(|status| status.as_u16());
            assert_eq!(status, expected, "{payload}");
        }
    }
}
