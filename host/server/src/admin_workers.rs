//! Orders to workers on the admin listener: `POST /admin/workers/{pool}/{worker}/drain` and `/undrain`.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{HeaderMap, ORIGIN};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;

use crate::app::App;
use crate::fleet::{Pool, Worker};
use crate::http::body::ResponseBody;
use crate::http::error::{ApiError, Blame, json_response};
use crate::kept::KeptFate;
use crate::quoted::quoted;

/// Where orders to workers begin.
pub const PREFIX: &str = "/admin/workers/";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Drain,
    Undrain,
}

/// Carries an order out. Given twice it changes nothing, and answers the same.
pub fn answer(app: &App, request: &Request<Incoming>) -> Response<ResponseBody> {
    match carry_out(app, request) {
        Ok(response) => response,
        Err(error) => error.response(),
    }
}

fn carry_out(app: &App, request: &Request<Incoming>) -> Result<Response<ResponseBody>, ApiError> {
    let path = request.uri().path();
    let Some((pool, worker, order)) = parse(path) else {
        let message =
            format!("{path:.200} is no order; orders are POST {PREFIX}POOL/WORKER/drain and .../undrain");
        return Err(ApiError::new(StatusCode::NOT_FOUND, Blame::Client, "not_found", message));
    };
    if request.method() != Method::POST {
        let message = format!("{path:.200} takes POST, not {}", request.method());
        return Err(ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            Blame::Client,
            "method_not_allowed",
            message,
        ));
    }
    no_web_page(request.headers())?;
    let (pool, worker) = find(app, pool, worker)?;
    let was_draining = pool.draining(worker).asked;
    match order {
        Order::Drain => {
            pool.drain(worker);
            // It need not wait for conversations that may never go on.
            app.kept.end_all_of(app, worker.id, KeptFate::Drained);
        }
        Order::Undrain => pool.undrain(worker),
    }
    let now = pool.draining(worker);
    if now.asked != was_draining {
        let (pool, worker) = (&pool.config.name, &worker.name);
        tracing::info!(pool, worker, draining = now.asked, "an operator's order");
    }
    let body = json!({
        "pool": pool.config.name,
        "worker": worker.name,
        "draining": now.asked,
        "requests": worker.booked().requests,
        "handles": now.handles,
        "safe_to_stop": now.safe_to_stop,
    });
    Ok(json_response(StatusCode::OK, body.to_string()))
}

/// Refuses orders of web pages. This listener trusts whoever reaches it, and a page open on this machine does: browsers say where it
/// is from.
pub fn no_web_page(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.contains_key(ORIGIN) {
        let message = "orders are not taken from web pages (the request has an Origin header)";
        return Err(ApiError::new(StatusCode::FORBIDDEN, Blame::Client, "origin_refused", message));
    }
    Ok(())
}

/// Whether these could name a pool and a worker: what else stands in a path would change its meaning.
pub fn can_be_names(pool: &str, worker: &str) -> bool {
    let is_name = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    is_name(pool) && is_name(worker)
}

/// Names have no character that would be escaped.
fn parse(path: &str) -> Option<(&str, &str, Order)> {
    let mut parts = path.strip_prefix(PREFIX)?.split('/');
    let (pool, worker, order) = (parts.next()?, parts.next()?, parts.next()?);
    let order = match order {
        "drain" => Order::Drain,
        "undrain" => Order::Undrain,
        _ => return None,
    };
    parts.next().is_none().then_some((pool, worker, order))
}

fn find<'a>(app: &'a App, pool: &str, worker: &str) -> Result<(&'a Pool, &'a Arc<Worker>), ApiError> {
    let missing = |code, message| ApiError::new(StatusCode::NOT_FOUND, Blame::Client, code, message);
    let pools = app.fleet.pools();
    let found = pools.iter().find(|other| other.config.name == pool).ok_or_else(|| {
        let known: Vec<_> = pools.iter().map(|pool| pool.config.name.as_str()).collect();
        missing(
            "pool_not_found",
            format!("there is no pool {}; there are: {}", quoted(pool), known.join(", ")),
        )
    })?;
    let worker = found.worker(worker).ok_or_else(|| {
        let known: Vec<_> = found.workers.iter().map(|worker| worker.name.as_str()).collect();
        let message = format!("pool {pool:?} has no worker {}; it has: {}", quoted(worker), known.join(", "));
        missing("worker_not_found", message)
    })?;
    Ok((found, worker))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read() {
        for (path, expected) in [
            ("/admin/workers/main/prefill-0/drain", Some(("main", "prefill-0", Order::Drain))),
            ("/admin/workers/main/prefill-0/undrain", Some(("main", "prefill-0", Order::Undrain))),
            ("/admin/workers/main/prefill-0/stop", None),
            ("/admin/workers/main/prefill-0/drain/", None),
            ("/admin/workers/main/drain", None),
            ("/admin/workers/", None),
        ] {
            assert_eq!(parse(path), expected, "{path}");
        }
    }
}
