//! Sending one leg to one worker, and saying who failed when it fails.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Response, StatusCode};
use sluice_core::health::Report;
use tokio::time::timeout_at;

use super::Failed;
use super::call::Call;
use crate::fleet::Worker;
use crate::http::body::ReadError;
use crate::http::error::{ApiError, Blame};
use crate::http::members::Members;
use crate::upstream::UpstreamError;

/// The longest whole answer taken from an engine, in bytes: 128 k tokens with logprobs are under 64 MiB.
const ANSWER_BYTES_AT_MOST: usize = 64 * 1024 * 1024;

/// When to come back after this host ran short of descriptors or ports: they are freed as requests end.
const RETRY_AFTER_SHORTAGE_MS: u32 = 1_000;

/// Sends a leg and waits for the answer's head, within the request's time.
pub(super) async fn send(
    call: &Call<'_>,
    worker: &Arc<Worker>,
    blame: Blame,
    body: Vec<u8>,
    attempt: u32,
) -> Result<Response<Incoming>, Failed> {
    call.app.telemetry.metrics.leg(&worker.pool, &worker.name, blame.name());
    let path = call.request.endpoint.path();
    let sending = call.app.upstream.send(Method::POST, &worker.url, path, body, call.leg_headers(attempt));
    let error = match timeout_at(call.deadline, sending).await {
        Ok(Ok(response)) => {
            // A 5xx is the engine's failure; a 4xx is the client's, which the engine found.
            let failed = response.status().is_server_error();
            worker.seen().failures.observe(f64::from(u8::from(failed)), 1.0);
            if failed {
                call.app.telemetry.metrics.leg_failure(&worker.pool, &worker.name, "status_5xx");
            }
            return Ok(response);
        }
        Ok(Err(error)) => error,
        Err(_) => return Err(Failed::Final(timed_out(call, worker, blame))),
    };
    let (reason, code) = match error {
        UpstreamError::Local { .. } => {
            // Our own shortage says nothing of the worker.
            call.app.telemetry.metrics.leg_failure(&worker.pool, &worker.name, "local");
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
            ("connect", "worker_unreachable")
        }
        UpstreamError::Broken { .. } => ("broken", "worker_broke_off"),
    };
    worker.seen().failures.observe(1.0, 1.0);
    call.app.telemetry.metrics.leg_failure(&worker.pool, &worker.name, reason);
    let message = format!("{} worker {:?}: {error}", blame.name(), worker.name);
    let error = ApiError::new(StatusCode::BAD_GATEWAY, blame, code, message);
    Err(Failed::Retry { reason, worker: Some(worker.id), error })
}

/// Reads a whole answer within the request's time.
pub(super) async fn read(
    call: &Call<'_>,
    worker: &Arc<Worker>,
    blame: Blame,
    body: Incoming,
) -> Result<bytes::Bytes, Failed> {
    let error = match timeout_at(call.deadline, crate::http::body::read(body, ANSWER_BYTES_AT_MOST)).await {
        Ok(Ok(bytes)) => return Ok(bytes),
        Ok(Err(error)) => error,
        Err(_) => return Err(Failed::Final(timed_out(call, worker, blame))),
    };
    worker.seen().failures.observe(1.0, 1.0);
    call.app.telemetry.metrics.leg_failure(&worker.pool, &worker.name, "broken");
    let message = format!("{} worker {:?}: {error}", blame.name(), worker.name);
    let told = ApiError::new(StatusCode::BAD_GATEWAY, blame, "worker_broke_off", message);
    Err(match error {
        ReadError::TooLong { .. } => Failed::Final(told),
        ReadError::Broken(_) => Failed::Retry { reason: "broken", worker: Some(worker.id), error: told },
    })
}

/// An engine's own refusal. A 5xx is the engine's trouble, and nothing reached the client: another attempt may do
/// better. Anything else is final.
pub(super) fn refusal(worker: &Worker, blame: Blame, status: StatusCode, body: &[u8]) -> Failed {
    let error = told(worker, blame, status, body);
    if status.is_server_error() {
        Failed::Retry { reason: "status_5xx", worker: Some(worker.id), error }
    } else {
        Failed::Final(error)
    }
}

/// What the client is told: the engine's own words when they have OpenAI's shape, ours otherwise.
fn told(worker: &Worker, blame: Blame, status: StatusCode, body: &[u8]) -> ApiError {
    #[derive(serde::Deserialize)]
    struct EngineError {
        message: String,
        #[serde(default)]
        param: Option<String>,
    }
    let engine =
        Members::parse(body).ok().and_then(|members| members.read::<EngineError>("error").ok().flatten());
    let blame = if status.is_client_error() { Blame::Client } else { blame };
    let status =
        if status.is_client_error() || status.is_server_error() { status } else { StatusCode::BAD_GATEWAY };
    let code = match blame {
        Blame::Client => "refused_by_engine",
        _ => "engine_failed",
    };
    match engine {
        Some(EngineError { message, param }) => {
            ApiError { param, ..ApiError::new(status, blame, code, message) }
        }
        None => {
            let message = format!("{} worker {:?} answered {status}", worker.role.name(), worker.name);
            ApiError::new(status, blame, code, message)
        }
    }
}

fn timed_out(call: &Call<'_>, worker: &Worker, blame: Blame) -> ApiError {
    worker.seen().failures.observe(1.0, 1.0);
    call.app.telemetry.metrics.leg_failure(&worker.pool, &worker.name, "timeout");
    let limit = call.app.config.server.request_timeout_ms;
    let message = format!(
        "{} worker {:?} did not answer within the request's {limit} ms (server.request_timeout_ms)",
        blame.name(),
        worker.name
    );
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, blame, "timeout", message)
}
