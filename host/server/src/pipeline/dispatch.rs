//! Sending one leg to one worker, and saying who failed when it fails.

use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::{Method, Response, StatusCode};
use sluice_core::failure::Failure;
use tokio::time::timeout_at;

use super::attempt::Failed;
use super::call::Call;
use super::deadline::Deadline;
use super::origin::Origin;
use crate::fleet::{Leg, Worker};
use crate::http::body::ReadError;
use crate::http::error::{ApiError, Blame};
use crate::http::segments::Segments;
use crate::telemetry::labels::{self, Retry};
use crate::upstream::{UpstreamBody, UpstreamError};

/// The longest whole answer taken from an engine, in bytes: 128 k tokens with logprobs are under 64 MiB.
pub(crate) const ANSWER_BYTES_AT_MOST: usize = 64 * 1024 * 1024;

/// Whether a leg whose connection broke before an answer may be sent once more as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resend {
    /// It carries no handle.
    Once,
    /// It carries a handle. The engine may have begun to read the blocks, and the holder may have given them away
    /// since: a second read could answer with another request's text.
    Never,
}

/// Sends a leg and waits for the answer's head.
pub(super) async fn send(
    call: &Call<'_>,
    leg: &mut Leg,
    blame: Blame,
    body: Segments,
    how: (Resend, u32),
    deadline: Deadline,
) -> Result<Response<UpstreamBody>, Failed> {
    send_from(&call.origin(), leg, (blame.into(), blame), body, how, deadline).await
}

/// As [`send`], for any request; the leg's name in traces, and who is to blame when it fails.
pub(crate) async fn send_from(
    origin: &Origin<'_>,
    leg: &mut Leg,
    (name, blame): (labels::Leg, Blame),
    body: Segments,
    (resend, attempt): (Resend, u32),
    deadline: Deadline,
) -> Result<Response<UpstreamBody>, Failed> {
    let traceparent = origin.trail.leg(name, &leg.worker().name);
    let first =
        timeout_at(deadline.at, post(origin, leg.worker(), body.clone(), attempt, traceparent.clone())).await;
    let sent = match first {
        // Most likely an idle connection that the engine was just closing. The engine itself may be well: the leg is
        // sent once more, before it counts as failed.
        Ok(Err(UpstreamError::Broken { was_kept: true, .. })) if resend == Resend::Once => {
            origin.pool.metrics.retry(Retry::Resent);
            origin.trail.note(|story, _| story.leg_resent(name));
            timeout_at(deadline.at, post(origin, leg.worker(), body, attempt, traceparent)).await
        }
        other => other,
    };
    match sent {
        // Whether it is a success shows when it is read.
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(unanswered(leg, blame, &error)),
        Err(_) => Err(late(leg, blame, &deadline)),
    }
}

async fn post(
    origin: &Origin<'_>,
    worker: &Worker,
    body: Segments,
    attempt: u32,
    traceparent: Option<HeaderValue>,
) -> Result<Response<UpstreamBody>, UpstreamError> {
    let headers = origin.leg_headers(attempt, traceparent);
    origin.app.upstream.send(Method::POST, &worker.url, origin.path, body, headers).await
}

/// No answer's head came.
pub(crate) fn unanswered(leg: &mut Leg, blame: Blame, error: &UpstreamError) -> Failed {
    let (failure, code) = match error {
        UpstreamError::Local { .. } => {
            return short(leg, error.to_string());
        }
        UpstreamError::Connect { .. } => (Failure::Unreachable, "worker_unreachable"),
        UpstreamError::Broken { .. } => (Failure::BrokeOff, "worker_broke_off"),
    };
    let message = format!("{} worker {:?}: {error}", leg.worker().role.name(), leg.worker().name);
    fail(leg, blame, failure, code, message)
}

/// This host is short of something that requests give back as they end.
pub(crate) fn short(leg: &mut Leg, message: String) -> Failed {
    leg.failed(Failure::HostShort, &message);
    Failed {
        failure: Failure::HostShort,
        worker: Some(leg.worker().id),
        error: ApiError::host_short(message),
    }
}

/// It did not answer in its time.
pub(crate) fn late(leg: &mut Leg, blame: Blame, deadline: &Deadline) -> Failed {
    let worker = leg.worker();
    let message =
        format!("{} worker {:?} did not answer {}", worker.role.name(), worker.name, deadline.words());
    let failed = fail(leg, blame, deadline.failure, "timeout", message);
    Failed { error: ApiError { status: StatusCode::GATEWAY_TIMEOUT, ..failed.error }, ..failed }
}

/// An answer that is none: empty, no JSON, an error in a 200, no choices. Nothing of it reached the client.
pub(crate) fn no_answer(leg: &mut Leg, blame: Blame, failure: Failure, what: &str) -> Failed {
    let worker = leg.worker();
    let message = format!("{} worker {:?} answered 200, but {what}", worker.role.name(), worker.name);
    fail(leg, blame, failure, "no_answer", message)
}

/// Tells the leg's failure, and makes the client's error of it.
pub(crate) fn fail(
    leg: &mut Leg,
    blame: Blame,
    failure: Failure,
    code: &'static str,
    message: String,
) -> Failed {
    leg.failed(failure, &message);
    let worker = Some(leg.worker().id);
    Failed { failure, worker, error: ApiError::new(StatusCode::BAD_GATEWAY, blame, code, message) }
}

/// Reads a whole answer.
pub(crate) async fn read(
    leg: &mut Leg,
    blame: Blame,
    body: UpstreamBody,
    deadline: &Deadline,
) -> Result<Bytes, Failed> {
    let (failure, error) = match timeout_at(deadline.at, body.read_whole(ANSWER_BYTES_AT_MOST)).await {
        Ok(Ok(bytes)) => return Ok(bytes),
        Ok(Err(error @ ReadError::NoRoom)) => return Err(short(leg, error.to_string())),
        Ok(Err(error @ ReadError::TooLong { .. })) => (Failure::TooLong, error),
        Ok(Err(error @ ReadError::Broken(_))) => (Failure::BrokeOff, error),
        Err(_) => return Err(late(leg, blame, deadline)),
    };
    let message = format!("{} worker {:?}: {error}", leg.worker().role.name(), leg.worker().name);
    Err(fail(leg, blame, failure, "worker_broke_off", message))
}
