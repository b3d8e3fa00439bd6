//! One attempt at a passed request: a worker is chosen and asked, and its answer is looked at before any of it
//! reaches the client.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::response::Parts;
use serde::de::IgnoredAny;
use sluice_core::default_policy::fewest_requests;
use sluice_core::facts::Row;
use sluice_core::failure::Failure;
use sluice_core::load::Share;
use tokio::time::Instant;

use super::opening;
use super::paths::{Fate, Path};
use crate::app::App;
use crate::fleet::{Booking, Leg, Pool, Worker};
use crate::http::error::{ApiError, Blame};
use crate::http::internal;
use crate::http::members::Members;
use crate::http::segments::Segments;
use crate::ids::RequestId;
use crate::off_loop;
use crate::pipeline::attempt::Failed;
use crate::pipeline::deadline::Deadline;
use crate::pipeline::dispatch::{self, Resend};
use crate::pipeline::origin::Origin;
use crate::pipeline::stream_start::{self, Opened};
use crate::pipeline::{answer, refusal};
use crate::telemetry::labels;
use crate::telemetry::trail::Trail;

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
    /// How long what follows an answer's first token may take.
    pub answer_time: Duration,
    pub seed: u64,
    pub id: RequestId,
    pub deadline: Instant,
    pub trail: Trail,
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
    /// To be relayed as it comes. Boxed: it is many times as large.
    Stream(Box<Streamed>),
}

/// A stream that has begun.
pub(super) struct Streamed {
    /// Its first words, and the rest.
    pub opened: Opened,
    /// Load, until it ends.
    pub booking: Booking,
    /// To be told how it ended.
    pub leg: Leg,
}

impl Passage<'_> {
    /// Asks one worker.
    pub async fn attempt(&self, worker: &Arc<Worker>, attempt: u32) -> Result<Answered, Failed> {
        let booking = Booking::new(worker.clone(), self.share());
        let mut leg = Leg::passed(&self.pool, worker);
        self.trail.note(|story, now| story.attempt(now));
        let (origin, blame) = (self.origin(), Blame::Decode);
        let deadline = Deadline::passed(&origin, self.answer_time);
        let (named, how) = ((labels::Leg::Passthrough, blame), (Resend::Once, attempt));
        let response =
            dispatch::send_from(&origin, &mut leg, named, self.body.clone(), how, deadline).await?;
        let (head, body) = response.into_parts();
        if head.status.is_success() && answer::is_event_stream(&head.headers) {
            return match stream_start::open(body, deadline.at, opening::first).await {
                Ok(opened) => Ok(Answered::Stream(Box::new(Streamed { opened, booking, leg }))),
                Err(unopened) => Err(answer::did_not_begin(&mut leg, unopened, &deadline)),
            };
        }
        let bytes = dispatch::read(&mut leg, blame, body, &deadline).await?;
        if !head.status.is_success() {
            return Err(self.refused(&mut leg, &head, &bytes));
        }
        let kind = head.headers.get(CONTENT_TYPE).cloned();
        let of = kind.clone();
        let bytes = off_loop::run(bytes.len(), move || checked(of.as_ref(), bytes))
            .await
            .map_err(|undone| dispatch::short(&mut leg, undone.to_string()))?
            .map_err(|what| dispatch::no_answer(&mut leg, blame, Failure::NoAnswer, what))?;
        leg.went_well();
        Ok(Answered::Whole { status: head.status, kind, bytes })
    }

    fn origin(&self) -> Origin<'_> {
        Origin {
            app: self.app,
            pool: &self.pool,
            path: self.path.path,
            id: self.id,
            headers: &self.headers,
            deadline: self.deadline,
            trail: &self.trail,
        }
    }

    /// Who is asked: one that did not fail this request, if there is any.
    pub fn choose(&self, failed: &[u64]) -> Result<Arc<Worker>, ApiError> {
        let table = self.pool.table();
        let load = table.load();
        if table.breakers_ignored {
            self.origin().tell_breakers_ignored();
        }
        let alone = matches!(self.path.fate, Fate::Generates(_));
        let able = |row: &Row| !alone || table.fleet.serves_alone(*row);
        let has_failed = |row: &Row| failed.contains(&table.fleet.id[*row as usize]);
        let fewest =
            |rows: &mut dyn Iterator<Item = Row>| fewest_requests(&table.fleet, &load, self.seed, rows);
        fewest(&mut table.fleet.rows().filter(able).filter(|row| !has_failed(row)))
            .or_else(|| fewest(&mut table.fleet.rows().filter(able)))
            .and_then(|row| table.workers.get(row as usize).cloned())
            .ok_or_else(|| self.nobody(alone, table.fleet.rows().any(|row| able(&row))))
    }

    /// `some_up`, but draining: those get no passed request either.
    fn nobody(&self, alone: bool, some_up: bool) -> ApiError {
        let pool = &self.pool.config.name;
        if alone && !self.pool.workers.iter().any(|worker| worker.serves_alone()) {
            let message = format!(
                "{} is not split over prefill and decode, and no worker of pool {pool:?} serves alone: set can_prefill on \
                 a decode worker or add a unified one",
                self.path.path
            );
            return ApiError::bad_request(None, "unsplittable_request", message);
        }
        ApiError::no_worker_up(match some_up {
            true => format!("every worker of pool {pool:?} that can serve this is draining"),
            false => format!("no worker of pool {pool:?} that can serve this is up"),
        })
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

    fn refused(&self, leg: &mut Leg, head: &Parts, body: &[u8]) -> Failed {
        if head.status == StatusCode::NOT_FOUND && is_unknown_path(body) {
            let message = format!(
                "the engines of pool {:?} do not serve {}: worker {:?} does not know the path",
                self.pool.config.name,
                self.path.path,
                leg.worker().name
            );
            leg.failed(Failure::Refused, &message);
            let error = ApiError::new(head.status, Blame::Client, "path_not_served", message);
            return Failed { failure: Failure::Refused, worker: None, error };
        }
        if head.status == StatusCode::NOT_IMPLEMENTED {
            // What an engine was not built to do, no other of its pool was.
            let error = refusal::told(leg.worker(), Blame::Decode, head.status, body);
            leg.failed(Failure::Refused, &error.message);
            return Failed { failure: Failure::Refused, worker: None, error };
        }
        refusal::refusal(leg, Blame::Decode, head, body)
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
