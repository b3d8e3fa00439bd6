//! Requests to the other paths that engines serve: passed as they are to one worker, and its answer passed back.
//!
//! No policy is asked, since nothing is split: the worker with the fewest requests takes it. [`paths::PATHS`] says
//! which paths there are and who may serve them.

mod attempt;
mod opening;
pub mod paths;
mod request;
pub mod stream;

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Either;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, Response};
use serde::Deserialize;
use sluice_core::hash;
use tokio::time::Instant;

use crate::app::App;
use crate::fleet::Pool;
use crate::http::body::{ResponseBody, whole_with_place};
use crate::http::content_type;
use crate::http::error::ApiError;
use crate::http::members::Members;
use crate::ids::RequestId;
use crate::off_loop;
use crate::pipeline::admit::{self, Admitted};
use crate::pipeline::alarm::Alarm;
use crate::pipeline::deadline::SLOWEST_TOKEN;
use crate::pipeline::{ATTEMPTS_AT_MOST, answer, call};
use crate::record::{Kind, Record};
use crate::request::OUTPUT_TOKENS_UNLESS_SAID;
use crate::telemetry::labels::{Fallback, Retry};
use crate::tenants::TokenUse;
use attempt::{Answered, Passage};
use paths::{Fate, Path};
use request::Passed;
use stream::Passing;

/// Bytes of a body that break ties between workers: requests that begin alike go where the last one went, which is
/// what prefix caches like.
const SEED_BYTES: usize = 1_024;

/// Serves one request. Every path out is an engine's answer or an error in OpenAI's shape.
pub async fn serve(
    app: &Arc<App>,
    path: &'static Path,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let (head, incoming) = request.into_parts();
    let id = app.ids.next();
    let mut record = Record::start(app, Kind::Passage(*path), id, &head.headers);
    let deadline = Instant::now() + Duration::from_millis(app.config.server.request_timeout_ms);
    let mut response = match answered(app, path, &head.headers, incoming, id, deadline, &mut record).await {
        Ok(Answered::Whole { status, kind, bytes }) => {
            if let Some((prompt_tokens, output_tokens)) = counted(&bytes) {
                record.counted(prompt_tokens, output_tokens);
            }
            record.ok();
            let mut response = Response::new(whole_with_place(bytes, record.take_place()));
            *response.status_mut() = status;
            let kind = kind.unwrap_or(HeaderValue::from_static("application/json"));
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Ok(Answered::Stream(streamed)) => {
            let silence_at_most = Duration::from_millis(app.config.server.stream_silence_ms);
            let alarm = Alarm::set(deadline, silence_at_most);
            let passing = Passing::new(*streamed, path.fate, record, alarm);
            answer::stream(Either::Left(Either::Right(passing)))
        }
        Err(error) => {
            record.fail(&error);
            error.response()
        }
    };
    call::echo_request_id(&head.headers, id, response.headers_mut());
    response
}

async fn answered(
    app: &Arc<App>,
    path: &'static Path,
    headers: &HeaderMap,
    incoming: Incoming,
    id: RequestId,
    deadline: Instant,
    record: &mut Record,
) -> Result<Answered, ApiError> {
    let passage = read(app, path, headers, incoming, id, deadline, record).await?;
    until_answered(&passage).await
}

/// Admits a request and reads it: whom it may go to, and what of it.
async fn read<'a>(
    app: &'a Arc<App>,
    path: &'static Path,
    headers: &HeaderMap,
    incoming: Incoming,
    id: RequestId,
    deadline: Instant,
    record: &mut Record,
) -> Result<Passage<'a>, ApiError> {
    request::no_form(path)?;
    content_type::json(headers)?;
    let Admitted { caller, place, bytes, queued, .. } =
        admit::admit(app, headers, incoming, deadline, &record.trail().clone()).await?;
    record.admitted(place, queued);
    let parse = {
        let (app, caller, bytes) = (app.clone(), caller.clone(), bytes.clone());
        move || {
            let marks = |model: &str, priority| app.tenants.marks(&caller, model, priority).collect();
            Passed::parse(path, &bytes, marks)
        }
    };
    let Passed { model, output_limit, streams, body } = off_loop::run(bytes.len(), parse).await??;
    let pool = app.fleet.pool(&model).cloned().ok_or_else(|| call::unknown_model(app, &model))?;
    record.passed_in(&pool.metrics);
    let trail = record.trail().clone();
    trail.note(|story, _| story.found(&pool.config, &caller.name));
    if let Some(limit) = output_limit {
        limit.check(pool.config.max_model_len)?;
    }
    let max_output_tokens = output_limit.map_or(OUTPUT_TOKENS_UNLESS_SAID, |limit| limit.tokens);
    if path.fate.runs_the_model() {
        let generates = if matches!(path.fate, Fate::Generates(_)) { max_output_tokens } else { 0 };
        let prompt_tokens = pool.estimate_tokens(bytes.len());
        record.charge(TokenUse::reserve(&app.tenants, &caller, prompt_tokens, generates.into())?);
    }
    let asked = Asked { streams, output_tokens: output_limit.map(|limit| limit.tokens), bytes: bytes.len() };
    Ok(Passage {
        answer_time: asked.answer_time(path.fate, &pool),
        seed: hash::bytes(2, &bytes[..bytes.len().min(SEED_BYTES)]),
        headers: call::forwarded(headers, app.tenants.takes_keys(), pool.engine_key.as_ref(), &trail),
        trail,
        app,
        path,
        pool,
        max_output_tokens,
        body,
        body_bytes: bytes.len(),
        id,
        deadline,
    })
}

/// Asks one worker after another, while they fail and there is time.
async fn until_answered(passage: &Passage<'_>) -> Result<Answered, ApiError> {
    let mut unwanted = Vec::new();
    let mut attempt = 0;
    let mut worker = passage.choose(&unwanted)?;
    loop {
        let failed = match passage.attempt(&worker, attempt).await {
            Ok(answered) => return Ok(answered),
            Err(failed) => failed,
        };
        attempt += 1;
        passage.trail.note(|story, now| story.attempt_failed(failed.failure.name(), now));
        let again = attempt < ATTEMPTS_AT_MOST && failed.may_be_tried_again(&passage.pool, &unwanted);
        if !again || Instant::now() >= passage.deadline {
            return Err(failed.error);
        }
        if !passage.pool.may_retry() {
            passage.pool.metrics.fallback(Fallback::RetryBudgetSpent);
            return Err(failed.error);
        }
        unwanted.extend(failed.worker);
        let Ok(next) = passage.choose(&unwanted) else { return Err(failed.error) };
        worker = next;
        passage.pool.metrics.retry(Retry::After(failed.failure));
    }
}

/// What says how long an answer may take.
struct Asked {
    streams: bool,
    /// The client's limit.
    output_tokens: Option<u32>,
    /// Of the body.
    bytes: usize,
}

impl Asked {
    /// How long a whole answer may take after its first token, or after the first of its prompts: one request may ask
    /// for the embeddings of many. The longest time there is where that is not known.
    fn answer_time(&self, fate: Fate, pool: &Pool) -> Duration {
        let limit = Duration::from_millis(pool.config.prefill_timeout_ms);
        let most = pool.config.max_model_len;
        let known = match fate {
            Fate::Generates(_) if self.streams => Some(Duration::ZERO),
            Fate::Generates(_) => {
                self.output_tokens.or(most).map(|tokens| SLOWEST_TOKEN.saturating_mul(tokens))
            }
            Fate::Prefills => {
                most.map(|most| limit.saturating_mul(pool.estimate_tokens(self.bytes) / most.max(1)))
            }
            Fate::Tokenizes | Fate::Form => Some(Duration::ZERO),
        };
        known.unwrap_or(Duration::MAX)
    }
}

/// Prompt and output tokens as an engine's whole answer counts them, by either of the names that APIs give them.
fn counted(answer: &[u8]) -> Option<(u32, u32)> {
    #[derive(Deserialize)]
    struct Usage {
        #[serde(alias = "input_tokens")]
        prompt_tokens: u32,
        #[serde(alias = "output_tokens", default)]
        completion_tokens: u32,
    }
    let usage: Usage = Members::parse(answer).ok()?.read("usage").ok()??;
    Some((usage.prompt_tokens, usage.completion_tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_by_either_name() {
        for (answer, expected) in [
            (r#"{"usage":{"prompt_tokens":3,"total_tokens":3}}"#, Some((3, 0))),
            (r#"{"usage":{"input_tokens":3,"output_tokens":4}}"#, Some((3, 4))),
            (r#"{"usage":null}"#, None),
            ("[1]", None),
        ] {
            assert_eq!(counted(answer.as_bytes()), expected, "{answer}");
        }
    }
}
