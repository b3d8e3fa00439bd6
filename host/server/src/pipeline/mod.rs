//! The life of a request. [`serve`] and `run` read like the list in ARCHITECTURE.md; each step is a file.

pub(crate) mod admit;
pub(crate) mod alarm;
pub(crate) mod answer;
mod asks;
pub(crate) mod attempt;
pub(crate) mod call;
pub(crate) mod deadline;
mod decide;
mod decode_leg;
pub(crate) mod dispatch;
mod facts;
mod history;
mod hosted;
pub(crate) mod origin;
mod pinned;
mod prefill;
mod pull;
pub(crate) mod refusal;
pub mod relay;
mod retain;
mod reuse;
pub(crate) mod stream_start;
pub(crate) mod tokenize;
mod told;
#[cfg(test)]
mod told_cases;
mod turn;
mod unfetched;
mod unified;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::HeaderName;
use hyper::{HeaderMap, Request, Response};
use sluice_core::verdict::Placement;
use tokio::time::Instant;

use crate::app::App;
use crate::http::body::ResponseBody;
use crate::http::content_type;
use crate::http::error::ApiError;
use crate::record::{Kind, Record};
use crate::request::{Endpoint, OwnedRequest};
use crate::telemetry::labels::{Fallback, Label, Retry};
use admit::Admitted;
use attempt::Attempt;
use call::{Arrival, Call};
use history::History;

pub use answer::whole_as_passed;

/// Attempts at one request, the first included. Only failures before the first byte to the client are tried again.
/// When half of a fleet dies at once, an attempt may meet one dead worker after the other until all are known.
pub const ATTEMPTS_AT_MOST: u32 = 4;

/// Decisions for a pair that is avoided, until one is tried all the same.
const AVOIDED_PAIRS_MET_AT_MOST: usize = 4;

/// Header by which a client asks what was decided, and in which it is told.
pub const DECISION_HEADER: &str = "x-sluice-decision";

/// Header that carries request ids.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// Serves one generation request. Every path out is a response in OpenAI's shape.
pub async fn serve(app: &Arc<App>, endpoint: Endpoint, request: Request<Incoming>) -> Response<ResponseBody> {
    let (head, incoming) = request.into_parts();
    let id = app.ids.next();
    let mut record = Record::start(app, Kind::Generation(endpoint), id, &head.headers);
    let trail = record.trail().clone();
    let deadline = Instant::now() + Duration::from_millis(app.config.server.request_timeout_ms);
    // 0. Who asks, and a place, be it after a wait.
    let admitted = match content_type::json(&head.headers) {
        Err(error) => Err(error),
        Ok(()) => admit::admit(app, &head.headers, incoming, deadline, &trail).await,
    };
    let served = match admitted {
        Err(error) => Err(error),
        Ok(admitted) => {
            let arrival = Arrival { id, at: record.started(), deadline, trail: trail.clone() };
            run(app, endpoint, &head.headers, admitted, arrival, &mut record).await
        }
    };
    let mut response = served.unwrap_or_else(|error| {
        record.fail(&error);
        error.response()
    });
    if let Some(decision) = trail.decision_header() {
        response.headers_mut().insert(HeaderName::from_static(DECISION_HEADER), decision);
    }
    call::echo_request_id(&head.headers, id, response.headers_mut());
    response
}

async fn run(
    app: &Arc<App>,
    endpoint: Endpoint,
    headers: &HeaderMap,
    admitted: Admitted,
    arrival: Arrival,
    record: &mut Record,
) -> Result<Response<ResponseBody>, ApiError> {
    let Admitted { caller, urgency, place, bytes, queued } = admitted;
    record.admitted(place, queued);
    // 1. What is asked, by whom, of which pool; 2. what is remembered of the conversation.
    let mut request = OwnedRequest::read(endpoint, headers, bytes).await?;
    let priority = request.with_dependent_mut(|_, request| app.tenants.mark(&caller, urgency, request));
    let (request, history) = History::read(app, &caller, request).await?;
    let mut call =
        Call::read(app, headers, request.borrow_dependent(), history, &arrival, &caller, priority)?;
    reuse::find(&mut call).await;
    let call = &call;
    record.pool(&call.pool.metrics);
    record.charge(call.tokens.clone());
    let mut number = 0;
    let mut unwanted = Unwanted::default();
    loop {
        // 3. One picture of the fleet and of this request.
        let table = call.table(&unwanted.workers)?;
        let facts = Box::new(facts::gather(call, &table, number));
        // 4. and 5. One policy generation for the whole request decides; the answer is checked.
        let decision = decide::decide(call, &table, &facts)?;
        record.decided(&decision.metrics);
        let attempt = Attempt { call, number, table, facts, decision, turn_hold: None };
        if unwanted.has_avoided_pair_of(&attempt) {
            call.trail.note(|story, now| story.attempt_failed(Fallback::PairAvoided.name(), now));
            continue;
        }
        let holder = attempt.holder();
        // 6. Do it.
        let outcome = match attempt.decision.route.placement {
            Placement::Unified(row) => unified::run(attempt, row, record).await,
            Placement::Disaggregated(plan) if attempt.call.app.node.is_some() => {
                // Boxed: two legs at once are large, and most hosts have none.
                Box::pin(hosted::run(attempt, plan, record)).await
            }
            Placement::Disaggregated(plan) => pull::run(attempt, plan, None, record).await,
        };
        // 7. happens where the answer ends: see `turn`.
        let failed = match outcome {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        call.trail.note(|story, now| story.attempt_failed(failed.failure.name(), now));
        number += 1;
        let again = failed.may_be_tried_again(&call.pool, &unwanted.workers);
        if number == ATTEMPTS_AT_MOST || !again || Instant::now() >= call.deadline {
            return Err(failed.error);
        }
        if !call.pool.may_retry() {
            call.pool.metrics.fallback(Fallback::RetryBudgetSpent);
            return Err(failed.error);
        }
        call.pool.metrics.retry(Retry::After(failed.failure));
        unwanted.workers.extend(failed.worker);
        unwanted.workers.extend(holder.filter(|_| failed.failure.may_be_the_holders()));
    }
}

/// Workers that this request would rather not meet again.
#[derive(Default)]
struct Unwanted {
    /// By id: those that failed it, and those of pairs that are avoided.
    workers: Vec<u64>,
    pairs_met: usize,
}

impl Unwanted {
    /// Whether the decided pair is one that is avoided, so that it should be decided again without its decode worker,
    /// and then without its prefill worker. When none is left the last is tried all the same.
    fn has_avoided_pair_of(&mut self, attempt: &Attempt<'_, '_>) -> bool {
        let Some((prefill, decode)) = attempt.avoided_pair() else { return false };
        let metrics = &attempt.call.pool.metrics;
        if self.pairs_met == AVOIDED_PAIRS_MET_AT_MOST {
            metrics.fallback(Fallback::PairBreakerIgnored);
            return false;
        }
        metrics.fallback(Fallback::PairAvoided);
        self.workers.push(if self.pairs_met.is_multiple_of(2) { decode } else { prefill });
        self.pairs_met += 1;
        true
    }
}
