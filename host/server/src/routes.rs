//! Which path does what, on the data plane and on the admin listener.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;
use sluice_core::health::State;

use crate::admin_policies;
use crate::admin_sessions;
use crate::admin_token;
use crate::admin_workers;
use crate::app::App;
use crate::config::BUILTIN;
use crate::fleet::status;
use crate::http::body::{ResponseBody, whole};
use crate::http::error::{ApiError, Blame, json_response};
use crate::models;
use crate::node;
use crate::passthrough::{self, paths::Fate};
use crate::pipeline;
use crate::request::Endpoint;
use crate::sessions::ends;
use crate::tenants;

/// Where clients connect.
pub async fn data_plane(
    app: Arc<App>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let mut response = answer(&app, request).await;
    if app.is_draining() {
        // Its next request should go elsewhere: told now, the client never meets a connection that was just closed.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

async fn answer(app: &Arc<App>, request: Request<Incoming>) -> Response<ResponseBody> {
    if request.uri().path_and_query().is_some_and(|path| path.as_str().len() > URI_BYTES_AT_MOST) {
        return uri_too_long();
    }
    let endpoint = match (method(&request), request.uri().path()) {
        (&Method::POST, "/v1/chat/completions") => Endpoint::Chat,
        (&Method::POST, "/v1/completions") => Endpoint::Completions,
        (&Method::GET, "/v1/models") => return models::list(app),
        (&Method::GET, "/health") => return json_response(StatusCode::OK, r#"{"status":"ok"}"#),
        (&Method::GET, "/ready") => return ready(app),
        (&Method::GET, "/metrics") => return metrics(app),
        (&Method::GET, path) if path.starts_with(models::ONE) => return models::one(app, path),
        (&Method::DELETE, path) if path.starts_with(ends::PREFIX) => {
            return ends::delete(app, path, request.headers());
        }
        (method, path) => {
            return match passthrough::paths::find(path).filter(|_| method == Method::POST) {
                Some(passed) => passthrough::serve(app, passed, request).await,
                None => not_found(method, path, &data_plane_paths()),
            };
        }
    };
    pipeline::serve(app, endpoint, request).await
}

/// Where operators connect.
pub fn admin(app: &App, request: &Request<Incoming>) -> Response<ResponseBody> {
    match (method(request), request.uri().path()) {
        // Probes and scrapers show no token; clients may ask the same where they connect.
        (&Method::GET, "/ready") => return ready(app),
        (&Method::GET, "/metrics") => return metrics(app),
        (&Method::GET, "/health") => return json_response(StatusCode::OK, r#"{"status":"ok"}"#),
        _ => {}
    }
    if let Err(error) = admin_token::check(app.admin_token.as_ref(), request.headers()) {
        return error.response();
    }
    match (method(request), request.uri().path()) {
        (&Method::GET, "/admin/policies") => admin_policies::list(app),
        (&Method::GET, "/admin/decisions") => {
            admin_policies::decisions(app, request.uri().query().unwrap_or_default())
        }
        (&Method::GET, path) if path.starts_with(admin_policies::ONE) => admin_policies::one(app, path),
        (&Method::GET, "/admin/fleet") => {
            let transfer = app.node.as_ref().map(|handle| node::status::node(handle, &app.config, &app.kept));
            let body = json!({"pools": status::fleet(&app.fleet), "transfer": transfer});
            json_response(StatusCode::OK, body.to_string())
        }
        (&Method::GET, "/admin/tenants") => {
            let body = json!(tenants::status::tenants(&app.tenants, &app.admission));
            json_response(StatusCode::OK, body.to_string())
        }
        (_, path) if path == admin_sessions::ALL || path.starts_with(admin_sessions::ONE) => {
            admin_sessions::answer(app, request)
        }
        (_, path) if path.starts_with(admin_workers::PREFIX) => admin_workers::answer(app, request),
        (method, path) => not_found(method, path, &ADMIN),
    }
}

/// HEAD is GET without a body, which hyper leaves out.
fn method(request: &Request<Incoming>) -> &Method {
    if request.method() == Method::HEAD { &Method::GET } else { request.method() }
}

/// The longest path and query taken, in bytes. None here needs more than a model's name.
const URI_BYTES_AT_MOST: usize = 8 * 1024;

fn uri_too_long() -> Response<ResponseBody> {
    let message = format!("the request's URI is longer than {URI_BYTES_AT_MOST} bytes");
    ApiError::new(StatusCode::URI_TOO_LONG, Blame::Client, "uri_too_long", message).response()
}

/// What there is for clients, for those who miss it.
fn data_plane_paths() -> Vec<(Method, &'static str)> {
    let passed = passthrough::paths::PATHS.iter().filter(|path| path.fate != Fate::Form);
    DATA_PLANE.into_iter().chain(passed.map(|path| (Method::POST, path.path))).collect()
}

const DATA_PLANE: [(Method, &str); 7] = [
    (Method::POST, "/v1/chat/completions"),
    (Method::POST, "/v1/completions"),
    (Method::GET, "/v1/models"),
    (Method::DELETE, "/v1/sessions/ID"),
    (Method::GET, "/health"),
    (Method::GET, "/ready"),
    (Method::GET, "/metrics"),
];

const ADMIN: [(Method, &str); 14] = [
    (Method::GET, "/ready"),
    (Method::GET, "/admin/policies"),
    (Method::GET, "/admin/policies/NAME"),
    (Method::GET, "/admin/decisions"),
    (Method::GET, "/admin/fleet"),
    (Method::GET, "/admin/tenants"),
    (Method::GET, "/admin/sessions"),
    (Method::GET, "/admin/sessions/ID"),
    (Method::DELETE, "/admin/sessions"),
    (Method::DELETE, "/admin/sessions/ID"),
    (Method::POST, "/admin/workers/POOL/WORKER/drain"),
    (Method::POST, "/admin/workers/POOL/WORKER/undrain"),
    (Method::GET, "/metrics"),
    (Method::GET, "/health"),
];

/// Whether balancers should send requests here: not while draining, and only if every pool can serve.
fn ready(app: &App) -> Response<ResponseBody> {
    let pools = status::fleet(&app.fleet);
    let serves = pools.iter().all(|pool| pool.serves) && !app.is_draining();
    let pools: Vec<_> = pools
        .iter()
        .map(|pool| {
            let up = pool.workers.iter().filter(|worker| worker.state == State::Up).count();
            let kv = pool.kv.as_ref().map(|kv| kv.verdict);
            json!({"name": pool.name, "serves": pool.serves, "note": pool.note, "kv": kv, "up": up, "workers": pool.workers.len()})
        })
        .collect();
    let generation = app.policies.generation();
    let wanted = &app.config.policy.default;
    let in_force = if generation.default_policy().is_some() { wanted.as_str() } else { BUILTIN };
    let body = json!({
        "ready": serves,
        "draining": app.is_draining(),
        "pools": pools,
        "policy": {
            "wanted": wanted,
            "in_force": in_force,
            "put_aside": wanted != BUILTIN && generation.put_aside(wanted).is_some(),
            "generation": generation.number,
        },
    });
    let status = if serves { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json_response(status, body.to_string())
}

fn metrics(app: &App) -> Response<ResponseBody> {
    app.sessions.tell();
    for pool in app.fleet.pools() {
        pool.metrics.pairs_open(pool.pairs.open());
        for (worker, status) in pool.workers.iter().zip(status::workers(pool)) {
            worker.metrics.seen(&status);
        }
    }
    let mut response = Response::new(whole(app.telemetry.metrics.encode()));
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Tells a wrong method from an unknown path.
fn not_found(method: &Method, path: &str, known: &[(Method, &str)]) -> Response<ResponseBody> {
    let shown: String = path.chars().take(200).collect();
    if let Some((right, _)) = known.iter().find(|(_, other)| *other == path) {
        let message = format!("{shown} takes {right}, not {method}");
        let error =
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, Blame::Client, "method_not_allowed", message);
        let mut response = error.response();
        if let Ok(allowed) = HeaderValue::from_str(right.as_str()) {
            response.headers_mut().insert(ALLOW, allowed);
        }
        return response;
    }
    let paths: Vec<_> = known.iter().map(|(method, path)| format!("{method} {path}")).collect();
    let message = format!("there is no {shown} here; there are: {}", paths.join(", "));
    ApiError::new(StatusCode::NOT_FOUND, Blame::Client, "not_found", message).response()
}
