//! Sending one leg to one worker, and saying who failed when it fails.

use std::sync::Arc;

use hyper::header::RETRY_AFTER;
use hyper::http::response::Parts;
use hyper::{Method, Response, StatusCode};
use sluice_core::health::Report;
use tokio::time::timeout_at;

use super::Failed;
use super::call::Call;
use crate::fleet::Worker;
use crate::http::body::ReadError;
use crate::http::error::{ApiError, Blame};
use crate::http::members::Members;
use crate::http::segments::Segments;
use crate::telemetry::labels::{LegFailure, Retry};
use crate::upstream::{UpstreamBody, UpstreamError};

/// The longest whole answer taken from an engine, in bytes: 128 k tokens with logprobs are under 64 MiB.
const ANSWER_BYTES_AT_MOST: usize = 64 * 1024 * 1024;

/// When to come back after this host ran short of descriptors or ports: they are freed as requests end.
const RETRY_AFTER_SHORTAGE_MS: u32 = 1_000;

/// Whether a leg whose connection broke before an answer may be sent once more as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resend {
    /// It carries no handle.
    Once,
    /// It carries a handle. The engine may have begun to read the blocks, and the holder may have given them away
    /// since: a second read could answer with another request's text.
    Never,
}

/// The longest message of an engine passed on, in characters. vLLM's longest, of schema errors, are under 2,000.
const ENGINE_WORDS_AT_MOST: usize = 4_000;

/// Sends a leg and waits for the answer's head, within the request's time.
pub(super) async fn send(
    call: &Call<'_>,
    worker: &Arc<Worker>,
    blame: Blame,
    body: Segments,
    resend: Resend,
    attempt: u32,
) -> Result<Response<UpstreamBody>, Failed> {
    worker.metrics.leg(blame.into());
    let first = timeout_at(call.deadline, post(call, worker, body.clone(), attempt)).await;
    let sent = match first {
        // Most likely an idle connection that the engine was just closing. The engine itself may be well: the leg is
        // sent once more, before it counts as failed.
        Ok(Err(UpstreamError::Broken { .. })) if resend == Resend::Once => {
            call.pool.metrics.retry(Retry::Resent);
            timeout_at(call.deadline, post(call, worker, body, attempt)).await
        }
        other => other,
    };
    let error = match sent {
        Ok(Ok(response)) => {
            // A 5xx is the engine's failure; a 4xx is the client's, which the engine found. Whether a 200 is a success
            // shows when it is read.
            if response.status().is_server_error() {
                worker.seen().failures.observe(1.0, 1.0);
                worker.metrics.leg_failure(LegFailure::Status5xx);
            }
            return Ok(response);
        }
        Ok(Err(error)) => error,
        Err(_) => return Err(Failed::Final(timed_out(call, worker, blame))),
    };
    let (failure, reason, code) = match error {
        UpstreamError::Local { .. } => {
            // Our own shortage says nothing of the worker.
            worker.metrics.leg_failure(LegFailure::Local);
            let error =
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Blame::Host, "host_short", error.to_string());
            return Err(Failed::Final(error.retry_after(RETRY_AFTER_SHORTAGE_MS)));
        }
        UpstreamError::Connect { .. } => {
            // Real work met it: no need to wait for a probe.
            worker.seen().last_error = Some(error.to_string());
            if call.pool.report(worker, Report::ConnectFailed).is_some() {
                tracing::warn!(pool = worker.pool, worker = worker.name, "worker is down: {error}");
            }
            (LegFailure::Connect, Retry::Connect, "worker_unreachable")
        }
        UpstreamError::Broken { .. } => (LegFailure::Broken, Retry::Broken, "worker_broke_off"),
    };
    worker.seen().failures.observe(1.0, 1.0);
    worker.metrics.leg_failure(failure);
    let message = format!("{} worker {:?}: {error}", blame.name(), worker.name);
    let error = ApiError::new(StatusCode::BAD_GATEWAY, blame, code, message);
    Err(Failed::Retry { reason, worker: Some(worker.id), error })
}

async fn post(
    call: &Call<'_>,
    worker: &Worker,
    body: Segments,
    attempt: u32,
) -> Result<Response<UpstreamBody>, UpstreamError> {
    let path = call.request.endpoint.path();
    call.app.upstream.send(Method::POST, &worker.url, path, body, call.leg_headers(attempt)).await
}

/// An answer that is none: empty, no JSON, an error in a 200, no choices. Nothing of it reached the client.
pub(super) fn no_answer(worker: &Worker, blame: Blame, what: &str) -> Failed {
    worker.seen().failures.observe(1.0, 1.0);
    worker.metrics.leg_failure(LegFailure::NoAnswer);
    let message = format!("{} worker {:?} answered 200, but {what}", blame.name(), worker.name);
    let error = ApiError::new(StatusCode::BAD_GATEWAY, blame, "no_answer", message);
    Failed::Retry { reason: Retry::NoAnswer, worker: Some(worker.id), error }
}

/// Reads a whole answer within the request's time.
pub(super) async fn read(
    call: &Call<'_>,
    worker: &Arc<Worker>,
    blame: Blame,
    body: UpstreamBody,
) -> Result<bytes::Bytes, Failed> {
    let error = match timeout_at(call.deadline, crate::http::body::read(body, ANSWER_BYTES_AT_MOST)).await {
        Ok(Ok(bytes)) => return Ok(bytes),
        Ok(Err(error)) => error,
        Err(_) => return Err(Failed::Final(timed_out(call, worker, blame))),
    };
    worker.seen().failures.observe(1.0, 1.0);
    worker.metrics.leg_failure(LegFailure::Broken);
    let message = format!("{} worker {:?}: {error}", blame.name(), worker.name);
    let told = ApiError::new(StatusCode::BAD_GATEWAY, blame, "worker_broke_off", message);
    Err(match error {
        ReadError::TooLong { .. } => Failed::Final(told),
        ReadError::Broken(_) => Failed::Retry { reason: Retry::Broken, worker: Some(worker.id), error: told },
    })
}

/// An engine's own refusal. A 5xx is the engine's trouble, and nothing reached the client: another attempt may do
/// better. Anything else is final.
pub(super) fn refusal(worker: &Worker, blame: Blame, head: &Parts, body: &[u8]) -> Failed {
    let mut error = told(worker, blame, head.status, body);
    let seconds = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    error.retry_after_ms = seconds.map(|seconds| seconds.saturating_mul(1_000));
    if head.status.is_client_error() {
        worker.seen().failures.observe(0.0, 1.0);
    }
    if head.status.is_server_error() {
        Failed::Retry { reason: Retry::Status5xx, worker: Some(worker.id), error }
    } else {
        Failed::Final(error)
    }
}

/// What the client is told: the engine's own words where they are found, ours otherwise.
fn told(worker: &Worker, blame: Blame, status: StatusCode, body: &[u8]) -> ApiError {
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

fn timed_out(call: &Call<'_>, worker: &Worker, blame: Blame) -> ApiError {
    worker.seen().failures.observe(1.0, 1.0);
    worker.metrics.leg_failure(LegFailure::Timeout);
    let limit = call.app.config.server.request_timeout_ms;
    let message = format!(
        "{} worker {:?} did not answer within the request's {limit} ms (server.request_timeout_ms)",
        blame.name(),
        worker.name
    );
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, blame, "timeout", message)
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
}
