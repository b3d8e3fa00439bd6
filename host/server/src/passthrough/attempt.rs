//! One attempt at a passed request: a worker is chosen and asked, and its answer is looked at before any of it
//! reaches the client.

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, StatusCode};
use serde::de::IgnoredAny;
use sluice_core::default_policy::fewest_requests;
use sluice_core::facts::Row;
use sluice_core::health::Report;
use sluice_core::load::Share;
use tokio::time::{Instant, timeout_at};

use super::paths::{Fate, Path};
use crate::app::App;
use crate::fleet::{Booking, Pool, Worker};
use crate::http::body::{self, ReadError};
use crate::http::error::{ApiError, Blame};
use crate::http::internal;
use crate::http::members::Members;
use crate::http::segments::Segments;
use crate::ids::RequestId;
use crate::pipeline::{Failed, REQUEST_ID_HEADER, answer, dispatch};
use crate::telemetry::labels::{Leg, LegFailure, Retry};
use crate::upstream::{UpstreamBody, UpstreamError};

/// What stays the same over all attempts.
pub(super) struct Passage<'a> {
    pub app: &'a Arc<App>,
    pub path: &'static Path,
    pub pool: Arc<Pool>,
    pub headers: HeaderMap,
    pub body: Segments,
    /// Of the body as the client sent it.
    pub body_bytes: usize,
    pub max_output_tokens: u32,
    pub seed: u64,
    pub id: RequestId,
    pub deadline: Instant,
}

/// An answer that may be passed on.
pub(super) enum Answered {
    /// Read to its end.
    Whole {
        /// As the engine says.
        status: StatusCode,
        /// As the engine says.
        kind: Option<HeaderValue>,
        /// Without what is internal.
        bytes: Bytes,
    },
    /// To be relayed as it comes.
    Stream {
        /// The engine's.
        body: UpstreamBody,
        /// Load, until it ends.
        booking: Booking,
    },
}

impl Passage<'_> {
    /// Asks one worker, one that did not fail this request if there is any.
    pub async fn attempt(&self, failed: &[u64], attempt: u32) -> Result<Answered, Failed> {
        let worker = self.choose(failed).map_err(Failed::Final)?;
        let booking = Booking::new(worker.clone(), self.share());
        worker.metrics.leg(Leg::Passthrough);
        let sending = self.app.upstream.send(
            Method::POST,
            &worker.url,
            self.path.path,
            self.body.clone(),
            self.leg_headers(attempt),
        );
        let response = match timeout_at(self.deadline, sending).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.unsent(&worker, &error)),
            Err(_) => return Err(self.timed_out(&worker)),
        };
        let (head, body) = response.into_parts();
        if head.status.is_success() && answer::is_event_stream(&head.headers) {
            return Ok(Answered::Stream { body, booking });
        }
        let read = timeout_at(self.deadline, body::read(body, dispatch::ANSWER_BYTES_AT_MOST)).await;
        let bytes = match read {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => {
                let failed = self.failed(&worker, LegFailure::Broken, &error.to_string());
                return Err(match (error, failed) {
                    // Another worker's answer would be as long.
                    (ReadError::TooLong { .. }, Failed::Retry { error, .. }) => Failed::Final(error),
                    (_, failed) => failed,
                });
            }
            Err(_) => return Err(self.timed_out(&worker)),
        };
        if !head.status.is_success() {
            return Err(self.refused(&worker, head.status, &head.headers, &bytes));
        }
        let kind = head.headers.get(CONTENT_TYPE).cloned();
        let bytes = checked(kind.as_ref(), bytes).map_err(|what| {
            self.failed(&worker, LegFailure::NoAnswer, &format!("answered 200, but {what}"))
        })?;
        worker.seen().failures.observe(0.0, 1.0);
        Ok(Answered::Whole { status: head.status, kind, bytes })
    }

    fn choose(&self, failed: &[u64]) -> Result<Arc<Worker>, ApiError> {
        let table = self.pool.table();
        let load = table.load();
        let alone = matches!(self.path.fate, Fate::Generates(_));
        let able = |row: &Row| !alone || table.fleet.serves_alone(*row);
        let has_failed = |row: &Row| failed.contains(&table.fleet.id[*row as usize]);
        let fewest =
            |rows: &mut dyn Iterator<Item = Row>| fewest_requests(&table.fleet, &load, self.seed, rows);
        fewest(&mut table.fleet.rows().filter(able).filter(|row| !has_failed(row)))
            .or_else(|| fewest(&mut table.fleet.rows().filter(able)))
            .and_then(|row| table.workers.get(row as usize).cloned())
            .ok_or_else(|| self.nobody(alone))
    }

    fn nobody(&self, alone: bool) -> ApiError {
        let pool = &self.pool.config.name;
        if alone && !self.pool.workers.iter().any(|worker| worker.serves_alone()) {
            let message = format!(
                "{} is not split over prefill and decode, and no worker of pool {pool:?} serves alone: set can_prefill on \
                 a decode worker or add a unified one",
                self.path.path
            );
            return ApiError::bad_request(None, "unsplittable_request", message);
        }
        ApiError::no_worker_up(format!("no worker of pool {pool:?} that can serve this is up"))
    }

    /// The prompt's tokens are not counted, but estimated from the body's bytes.
    fn share(&self) -> Share {
        let (prompt_tokens, block_tokens) =
            (self.pool.estimate_tokens(self.body_bytes), self.pool.config.block_tokens);
        match self.path.fate {
            Fate::Generates(_) => Share::unified(prompt_tokens, 0, self.max_output_tokens, block_tokens),
            Fate::Prefills => Share::prefill(prompt_tokens, 0, block_tokens),
            Fate::Tokenizes | Fate::Form => Share { requests: 1, ..Share::default() },
        }
    }

    fn leg_headers(&self, attempt: u32) -> HeaderMap {
        let mut headers = self.headers.clone();
        if let Ok(id) = HeaderValue::try_from(self.id.attempt(attempt)) {
            headers.insert(HeaderName::from_static(REQUEST_ID_HEADER), id);
        }
        headers
    }

    /// No answer's head came.
    fn unsent(&self, worker: &Worker, error: &UpstreamError) -> Failed {
        match error {
            UpstreamError::Local { .. } => {
                worker.metrics.leg_failure(LegFailure::Local);
                Failed::Final(dispatch::host_short(error))
            }
            UpstreamError::Connect { .. } => {
                worker.seen().last_error = Some(error.to_string());
                if self.pool.report(worker, Report::ConnectFailed).is_some() {
                    tracing::warn!(pool = worker.pool, worker = worker.name, "worker is down: {error}");
                }
                self.failed(worker, LegFailure::Connect, &error.to_string())
            }
            UpstreamError::Broken { .. } => self.failed(worker, LegFailure::Broken, &error.to_string()),
        }
    }

    /// The worker failed, and nothing reached the client.
    fn failed(&self, worker: &Worker, failure: LegFailure, what: &str) -> Failed {
        worker.seen().failures.observe(1.0, 1.0);
        worker.metrics.leg_failure(failure);
        let (reason, code) = match failure {
            LegFailure::Connect => (Retry::Connect, "worker_unreachable"),
            LegFailure::NoAnswer => (Retry::NoAnswer, "no_answer"),
            _ => (Retry::Broken, "worker_broke_off"),
        };
        let message = format!("worker {:?}: {what}", worker.name);
        let error = ApiError::new(StatusCode::BAD_GATEWAY, Blame::Decode, code, message);
        Failed::Retry { reason, worker: Some(worker.id), error }
    }

    fn refused(&self, worker: &Worker, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Failed {
        if status == StatusCode::NOT_FOUND && is_unknown_path(body) {
            let message = format!(
                "the engines of pool {:?} do not serve {}: worker {:?} does not know the path",
                self.pool.config.name, self.path.path, worker.name
            );
            return Failed::Final(ApiError::new(status, Blame::Client, "path_not_served", message));
        }
        let mut error = dispatch::told(worker, Blame::Decode, status, body);
        let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
        error.retry_after_ms = seconds.map(|seconds| seconds.saturating_mul(1_000));
        // What an engine was not built to do, no other of its pool was.
        if !status.is_server_error() || status == StatusCode::NOT_IMPLEMENTED {
            worker.seen().failures.observe(0.0, 1.0);
            return Failed::Final(error);
        }
        worker.seen().failures.observe(1.0, 1.0);
        worker.metrics.leg_failure(LegFailure::Status5xx);
        Failed::Retry { reason: Retry::Status5xx, worker: Some(worker.id), error }
    }

    fn timed_out(&self, worker: &Worker) -> Failed {
        worker.seen().failures.observe(1.0, 1.0);
        worker.metrics.leg_failure(LegFailure::Timeout);
        let limit = self.app.config.server.request_timeout_ms;
        let message = format!(
            "worker {:?} did not answer within the request's {limit} ms (server.request_timeout_ms)",
            worker.name
        );
        Failed::Final(ApiError::new(StatusCode::GATEWAY_TIMEOUT, Blame::Decode, "timeout", message))
    }
}

/// Whether a 404 speaks of the path, as vLLM's web framework does, and not of a model.
fn is_unknown_path(body: &[u8]) -> bool {
    Members::parse(body).map_or(true, |members| !members.has("error") && !members.has("message"))
}

/// A whole answer without what is internal, or what it is instead of an answer.
fn checked(kind: Option<&HeaderValue>, bytes: Bytes) -> Result<Bytes, &'static str> {
    if bytes.is_empty() {
        return Err("with nothing in it");
    }
    let is_json = kind.is_none_or(|kind| kind.as_bytes().starts_with(b"application/json"));
    if !is_json {
        return Ok(bytes);
    }
    let Ok(members) = Members::parse(&bytes) else {
        // A list is an answer too; half a one is none.
        return serde_json::from_slice::<IgnoredAny>(&bytes).map(|_| bytes).map_err(|_| "with no JSON in it");
    };
    // A response that failed holds `error` as well, but it is an answer with an id.
    let says = |name, value| members.get(name).is_some_and(|found| found.get() == value);
    if says("object", "\"error\"")
        || says("type", "\"error\"")
        || (members.get("error").is_some() && !members.has("id"))
    {
        return Err("with an error in it");
    }
    if internal::may_hold_internal(&bytes)
        && let Some(cleaned) = internal::without_internal(&members)
    {
        return Ok(cleaned.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_answers_are_checked_and_cleaned() {
        let json = HeaderValue::from_static("application/json; charset=utf-8");
        let octets = HeaderValue::from_static("application/octet-stream");
        for (kind, body, expected) in [
            (Some(&json), r#"{"tokens":[1, 2]}"#, Ok(r#"{"tokens":[1, 2]}"#)),
            (None, r#"{"tokens":[1]}"#, Ok(r#"{"tokens":[1]}"#)),
            (Some(&json), "[1]", Ok("[1]")),
            (Some(&octets), "\u{1}\u{2}", Ok("\u{1}\u{2}")),
            (Some(&json), r#"{"id":"r","kv_transfer_params":{"a":1}}"#, Ok(r#"{"id":"r"}"#)),
            (Some(&json), r#"{"id":"r","error":{"code":"x"}}"#, Ok(r#"{"id":"r","error":{"code":"x"}}"#)),
            (Some(&json), r#"{"text":"kv_transfer_params"}"#, Ok(r#"{"text":"kv_transfer_params"}"#)),
            (Some(&json), "", Err("with nothing in it")),
            (Some(&json), r#"{"tokens":[1"#, Err("with no JSON in it")),
            (Some(&json), "<html>", Err("with no JSON in it")),
            (Some(&json), r#"{"error":{"message":"x"}}"#, Err("with an error in it")),
            (Some(&json), r#"{"object":"error","message":"x"}"#, Err("with an error in it")),
            (Some(&json), r#"{"type":"error","error":{}}"#, Err("with an error in it")),
        ] {
            let found = checked(kind, Bytes::from(body.to_owned()));
            assert_eq!(found, expected.map(|text| Bytes::from(text.to_owned())), "{body}");
        }
    }

    #[test]
    fn an_unknown_path_is_told_from_an_unknown_model() {
        for (body, expected) in [
            (r#"{"detail":"Not Found"}"#, true),
            ("", true),
            (r#"{"error":{"message":"The model `x` does not exist."}}"#, false),
            (r#"{"object":"error","message":"no such model"}"#, false),
        ] {
            assert_eq!(is_unknown_path(body.as_bytes()), expected, "{body}");
        }
    }
}
