//! The life of a request. [`serve`] and `run` read like the list in ARCHITECTURE.md; each step is a file.

mod answer;
mod attempt;
mod call;
mod deadline;
mod decide;
mod dispatch;
mod facts;
mod prefill;
mod pull;
mod refusal;
pub mod relay;
mod stream_start;
mod turn;
mod unified;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response, StatusCode};
use sluice_core::verdict::Placement;
use tokio::time::{Instant, timeout_at};

use crate::app::App;
use crate::http::body::{self, ReadError, ResponseBody};
use crate::http::error::{ApiError, Blame};
use crate::ids::RequestId;
use crate::request::Endpoint;
use crate::telemetry::labels::{Fallback, Retry};
use attempt::Attempt;
use call::{Arrival, Call};
use turn::Record;

/// Attempts at one request, the first included. Only failures before the first byte to the client are tried again.
/// When half of a fleet dies at once, an attempt may meet one dead worker after the other until all are known.
pub const ATTEMPTS_AT_MOST: u32 = 4;

/// Decisions for a pair that is avoided, until one is tried all the same.
const AVOIDED_PAIRS_MET_AT_MOST: usize = 4;

/// Header by which a client asks what was decided, and in which it is told.
pub const DECISION_HEADER: &str = "x-sluice-decision";

/// Header that carries request ids.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// How long a body may take to arrive. It holds a place among the requests in flight meanwhile; 16 MiB in this
/// time is 2 Mbit/s.
const BODY_ARRIVES_WITHIN: Duration = Duration::from_secs(60);

/// When a client turned away for want of a place should come back.
const RETRY_AFTER_BUSY_MS: u32 = 1_000;

/// Serves one generation request. Every path out is a response in OpenAI's shape.
pub async fn serve(app: &Arc<App>, endpoint: Endpoint, request: Request<Incoming>) -> Response<ResponseBody> {
    let (head, incoming) = request.into_parts();
    let id = app.ids.next();
    let mut record = Record::start(app, endpoint);
    let served = match app.admit() {
        None => Err(busy(app)),
        Some(place) => {
            record.hold(place);
            run(app, endpoint, &head.headers, incoming, id, &mut record).await
        }
    };
    let mut response = served.unwrap_or_else(|error| {
        record.fail(&error);
        error.response()
    });
    call::echo_request_id(&head.headers, id, response.headers_mut());
    response
}

async fn run(
    app: &Arc<App>,
    endpoint: Endpoint,
    headers: &HeaderMap,
    incoming: Incoming,
    id: RequestId,
    record: &mut Record,
) -> Result<Response<ResponseBody>, ApiError> {
    let request_time = Duration::from_millis(app.config.server.request_timeout_ms);
    let arrival = Arrival { id, at: record.started(), deadline: Instant::now() + request_time };
    let bytes = read_body(app, incoming, arrival.deadline).await?;
    // 1. What is asked, by whom, of which pool; 2. what is remembered of the conversation.
    let call = &Call::read(app, endpoint, headers, &bytes, &arrival)?;
    record.pool(&call.pool.metrics);
    let mut number = 0;
    let mut unwanted = Unwanted::default();
    loop {
        // 3. One picture of the fleet and of this request.
        let table = call.table(&unwanted.workers)?;
        let facts = facts::gather(call, &table, number);
        // 4. and 5. One policy generation for the whole request decides; the answer is checked.
        let decision = decide::decide(call, &facts)?;
        record.decided(&decision.metrics);
        let attempt = Attempt { call, number, table, facts, decision };
        if unwanted.has_avoided_pair_of(&attempt) {
            continue;
        }
        // 6. Do it.
        let outcome = match attempt.decision.route.placement {
            Placement::Unified(row) => unified::run(attempt, row, record).await,
            Placement::Disaggregated(plan) => pull::run(attempt, plan, record).await,
        };
        // 7. happens where the answer ends: see `turn`.
        let failed = match outcome {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        number += 1;
        if number == ATTEMPTS_AT_MOST || !failed.failure.is_retryable() || Instant::now() >= call.deadline {
            return Err(failed.error);
        }
        if !call.pool.may_retry() {
            call.pool.metrics.fallback(Fallback::RetryBudgetSpent);
            return Err(failed.error);
        }
        call.pool.metrics.retry(Retry::After(failed.failure));
        unwanted.workers.extend(failed.worker);
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

async fn read_body(app: &App, incoming: Incoming, deadline: Instant) -> Result<bytes::Bytes, ApiError> {
    let deadline = deadline.min(Instant::now() + BODY_ARRIVES_WITHIN);
    let read = timeout_at(deadline, body::read(incoming, app.config.server.max_body_bytes)).await;
    let error = match read {
        Ok(Ok(bytes)) => return Ok(bytes),
        Ok(Err(error)) => error,
        Err(_) => {
            let message = format!(
                "the body did not arrive within {} s, or within server.request_timeout_ms",
                BODY_ARRIVES_WITHIN.as_secs()
            );
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, Blame::Client, "body_too_slow", message));
        }
    };
    Err(match error {
        ReadError::TooLong { limit_bytes } => ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            Blame::Client,
            "request_too_large",
            format!("the body is longer than {limit_bytes} bytes (server.max_body_bytes)"),
        ),
        ReadError::Broken(cause) => {
            ApiError::bad_request(None, "body_broken", format!("the body broke off: {cause}"))
        }
    })
}

fn busy(app: &App) -> ApiError {
    let limit = app.config.server.max_in_flight;
    ApiError::new(
        StatusCode::TOO_MANY_REQUESTS,
        Blame::Host,
        "too_many_in_flight",
        format!("{limit} requests are in flight, as many as server.max_in_flight allows; try again shortly"),
    )
    .retry_after(RETRY_AFTER_BUSY_MS)
}
