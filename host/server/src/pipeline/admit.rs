//! Before all else: who asks, and whether there is room. Then the body is read.
//!
//! A request that waits for room holds no place. Its body is read meanwhile, as far as the room for such bodies
//! goes: only then does the system tell that its client has gone.

use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::{HeaderMap, StatusCode};
use tokio::time::{Instant, timeout_at};

use crate::admission::{Entered, Place, Waiting};
use crate::app::App;
use crate::http::body::ReadError;
use crate::http::body_budget::LARGE_BODIES_BYTES_AT_MOST;
use crate::http::error::{ApiError, Blame};
use crate::telemetry::admission::Refusal;
use crate::telemetry::story::Stretch;
use crate::telemetry::trail::Trail;
use crate::tenants::Caller;

/// How long a body may take to arrive. It holds a place among the requests in flight meanwhile; 16 MiB in this
/// time is 2 Mbit/s.
const BODY_ARRIVES_WITHIN: Duration = Duration::from_secs(60);

/// A request that has its place.
pub(crate) struct Admitted {
    pub caller: Caller,
    /// Higher is more urgent.
    pub urgency: i32,
    pub place: Place,
    pub bytes: Bytes,
    /// If it waited for its place: from when to when.
    pub queued: Option<Stretch>,
}

/// Lets a request in, or says why not.
pub(crate) async fn admit(
    app: &App,
    headers: &HeaderMap,
    incoming: Incoming,
    deadline: Instant,
    trail: &Trail,
) -> Result<Admitted, ApiError> {
    let caller = app.tenants.identify(headers)?;
    trail.note(|story, _| story.asked_by(&caller.name));
    let urgency = app.tenants.urgency(&caller, headers)?;
    let longest = incoming.size_hint().upper().unwrap_or(app.config.server.max_body_bytes as u64);
    let body = pin!(read_body(app, caller.account, incoming, deadline));
    let entered = app.admission.enter(caller.account, urgency);
    let (place, bytes, queued) = match entered.map_err(|refusal| refused(app, &caller, refusal))? {
        Entered::Runs(place) => (place, body.await?, None),
        Entered::Waits(waiting) => {
            let from = app.clock.elapsed();
            let ((place, to), bytes) = wait(app, &caller, waiting, body, longest, deadline).await?;
            (place, bytes, Some(Stretch { from, to }))
        }
    };
    Ok(Admitted { caller, urgency, place, bytes, queued })
}

/// Gives the place and when it came.
async fn wait(
    app: &App,
    caller: &Caller,
    waiting: Waiting,
    mut body: Pin<&mut impl Future<Output = Result<Bytes, ApiError>>>,
    body_bytes_at_most: u64,
    deadline: Instant,
) -> Result<((Place, Duration), Bytes), ApiError> {
    let until = deadline.min(Instant::now() + Duration::from_millis(app.config.server.queue_timeout_ms));
    let mut place = pin!(async {
        let place = waiting.place(until).await.map_err(|refusal| refused(app, caller, refusal))?;
        Ok::<_, ApiError>((place, app.clock.elapsed()))
    });
    let Some(_room) = app.admission.room_for_body(body_bytes_at_most) else {
        let place = place.await?;
        return Ok((place, body.await?));
    };
    tokio::select! {
        biased;
        place = &mut place => Ok((place?, body.await?)),
        bytes = &mut body => {
            let bytes = bytes?;
            Ok((place.await?, bytes))
        }
    }
}

async fn read_body(
    app: &App,
    account: usize,
    incoming: Incoming,
    deadline: Instant,
) -> Result<Bytes, ApiError> {
    let deadline = deadline.min(Instant::now() + BODY_ARRIVES_WITHIN);
    let reading = app.admission.large_bodies().read(incoming, app.config.server.max_body_bytes);
    let read = timeout_at(deadline, reading).await;
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
        ReadError::NoRoom => no_room_for_body(app, account),
        ReadError::Broken(cause) => {
            let left = crate::http::body::peer_left(&*cause);
            let error = ApiError::bad_request(None, "body_broken", format!("the body broke off: {cause}"));
            ApiError { blame: if left { Blame::Left } else { error.blame }, ..error }
        }
    })
}

fn no_room_for_body(app: &App, account: usize) -> ApiError {
    app.admission.refuse_body(account);
    let message = format!(
        "the bodies of the requests that are served now take the {} MiB that this host has for them: try again later, or \
         send a shorter one",
        LARGE_BODIES_BYTES_AT_MOST / (1024 * 1024)
    );
    app.telemetry.warn_once("bodies full", || message.clone());
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Blame::Host, "bodies_full", message);
    error.retry_after(u32::try_from(app.admission.retry_after().as_millis()).unwrap_or(u32::MAX))
}

/// What the client is told, with the time that is measured to be worth waiting.
fn refused(app: &App, caller: &Caller, refusal: Refusal) -> ApiError {
    let server = &app.config.server;
    let busy = |status, code, message: String| ApiError::new(status, Blame::Load, code, message);
    let (error, wait) = match refusal {
        Refusal::TenantFull => {
            let limit = app.tenants.max_in_flight(caller).unwrap_or_default();
            let message = format!(
                "tenant {:?} has {limit} requests at a time, waiting ones included, as many as its max_in_flight allows",
                caller.name
            );
            let status = StatusCode::TOO_MANY_REQUESTS;
            let error = ApiError::new(status, Blame::Client, "rate_limit_exceeded", message);
            (error, app.admission.tenant_retry_after(caller.account))
        }
        Refusal::QueueTimeout => {
            let message = format!(
                "no place became free within {} ms (server.queue_timeout_ms, or server.request_timeout_ms)",
                server.queue_timeout_ms.min(server.request_timeout_ms)
            );
            let error = busy(StatusCode::SERVICE_UNAVAILABLE, "queue_timeout", message);
            (error, app.admission.retry_after())
        }
        _ => {
            let message = format!(
                "{} requests are in flight (server.max_in_flight) and {} wait (server.max_queued): this one was the first \
                 to go; try again later",
                server.max_in_flight, server.max_queued
            );
            app.telemetry.warn_once("queue full", || {
                format!("the queue is full (server.max_queued = {}), requests are shed", server.max_queued)
            });
            (busy(StatusCode::TOO_MANY_REQUESTS, "overloaded", message), app.admission.retry_after())
        }
    };
    error.retry_after(u32::try_from(wait.as_millis()).unwrap_or(u32::MAX))
}
