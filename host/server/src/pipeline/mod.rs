//! The life of a request. [`serve`] and `run` read like the list in ARCHITECTURE.md; each step is a file.

mod admit;
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
use tokio::time::Instant;

use crate::app::App;
use crate::http::body::ResponseBody;
use crate::http::error::{ApiError, Blame};
use crate::request::Endpoint;
use admit::Admitted;
use call::{Arrival, Call};
use turn::Record;

/// Attempts at one request, the first included. Only failures before the first byte to the client are tried
/// again; a second worker that fails is rare, a third in a row means that the fleet is gone.
pub const ATTEMPTS_AT_MOST: u32 = 3;

/// Header by which a client asks what was decided, and in which it is told.
pub const DECISION_HEADER: &str = "x-sluice-decision";

/// Header that carries request ids.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// An attempt that failed.
enum Failed {
    /// The client is told.
    Final(ApiError),
    /// Another attempt may do better; the client is told when there is none left.
    Retry {
        /// Label in metrics.
        reason: &'static str,
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
    let deadline = Instant::now() + Duration::from_millis(app.config.server.request_timeout_ms);
    // 0. Who asks, and a place, be it after a wait.
    let served = match admit::admit(app, &head.headers, incoming, deadline).await {
        Err(error) => Err(error),
        Ok(admitted) => {
            let arrival = Arrival { id, at: record.started(), deadline };
            run(app, endpoint, &head.headers, admitted, arrival, &mut record).await
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
    admitted: Admitted,
    arrival: Arrival,
    record: &mut Record,
) -> Result<Response<ResponseBody>, ApiError> {
    let Admitted { caller, urgency, place, bytes } = admitted;
    record.hold(place);
    // 1. What is asked, by whom, of which pool; 2. what is remembered of the conversation.
    let call = &Call::read(app, endpoint, headers, &bytes, &arrival, &caller, urgency)?;
    record.pool(&call.pool.config.name);
    record.charge(&call.tokens);
    let mut attempt = 0;
    let mut failed = Vec::new();
    loop {
        // 3. One picture of the fleet and of this request.
        let table = call.table(&failed)?;
        let facts = facts::gather(call, &table, attempt);
        // 4. and 5. One policy generation for the whole request decides; the answer is checked.
        let decision = decide::decide(call, &facts)?;
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
        call.app.telemetry.metrics.retry(&call.pool.config.name, reason);
    }
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
