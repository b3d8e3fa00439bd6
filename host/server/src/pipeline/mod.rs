//! The life of a request. [`serve`] and `run` read like the list in ARCHITECTURE.md; each step is a file.

mod answer;
mod call;
mod decide;
mod dispatch;
mod facts;
mod pull;
pub mod relay;
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
use crate::telemetry::labels::Retry;
use call::{Arrival, Call};
use turn::Record;

/// Attempts at one request, the first included. Only failures before the first byte to the client are tried
/// again; a second worker that fails is rare, a third in a row means that the fleet is gone.
pub const ATTEMPTS_AT_MOST: u32 = 3;

/// Header by which a client asks what was decided, and in which it is told.
pub const DECISION_HEADER: &str = "x-sluice-decision";

/// Header that carries request ids.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// How long a body may take to arrive. It holds a place among the requests in flight meanwhile; 16 MiB in this
/// time is 2 Mbit/s.
const BODY_ARRIVES_WITHIN: Duration = Duration::from_secs(60);

/// When a client turned away for want of a place should come back.
const RETRY_AFTER_BUSY_MS: u32 = 1_000;

/// An attempt that failed.
enum Failed {
    /// The client is told.
    Final(ApiError),
    /// Another attempt may do better; the client is told when there is none left.
    Retry {
        /// Label in metrics.
        reason: Retry,
        /// Who failed, by id: the next attempt goes elsewhere if it can.
        worker: Option<u64>,
        /// What the client is told then.
        error: ApiError,
    },
}

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
    let mut attempt = 0;
    let mut failed = Vec::new();
    loop {
        // 3. One picture of the fleet and of this request.
        let table = call.table(&failed)?;
        let facts = facts::gather(call, &table, attempt);
        // 4. and 5. One policy generation for the whole request decides; the answer is checked.
        let decision = decide::decide(call, &facts)?;
        record.decided(&decision.metrics);
        // 6. Do it.
        let outcome = match decision.route.placement {
            Placement::Unified(row) => {
                unified::run(call, &table, facts, decision, row, attempt, record).await
            }
            Placement::Disaggregated(plan) => {
                pull::run(call, &table, facts, decision, plan, attempt, record).await
            }
        };
        // 7. happens where the answer ends: see `turn`.
        let (reason, worker, error) = match outcome {
            Ok(response) => return Ok(response),
            Err(Failed::Final(error)) => return Err(error),
            Err(Failed::Retry { reason, worker, error }) => (reason, worker, error),
        };
        failed.extend(worker);
        attempt += 1;
        if attempt == ATTEMPTS_AT_MOST {
            return Err(error);
        }
        call.pool.metrics.retry(reason);
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

/// The worker behind a row. The row was checked against this very table, so this fails only by our own fault.
fn worker_at(
    table: &crate::fleet::Table,
    row: sluice_core::facts::Row,
) -> Result<Arc<crate::fleet::Worker>, Failed> {
    table.workers.get(row as usize).cloned().ok_or_else(|| {
        let message = format!("row {row} is not in a table of {} workers", table.workers.len());
        Failed::Final(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, Blame::Host, "internal", message))
    })
}
