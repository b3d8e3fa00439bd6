//! vLLM's HTTP API.

mod about;
mod answer;
mod answer_shapes;
mod refusal;
mod request;
mod request_body;
mod stream;
mod tokenize;

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, SERVER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpStream;

use crate::client::{Command, EngineClient, Gone};
use crate::clock::Clock;
use crate::config::EmulatorConfig;
use refusal::Refusal;

/// Longest request body: a prompt of a million token ids fits.
const MAX_BODY_BYTES: usize = 16 << 20;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;
type Answer = Result<Response<Body>, Refusal>;

/// The endpoint of a generation request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
}

/// What all requests share.
pub(crate) struct App {
    pub config: EmulatorConfig,
    pub engine: EngineClient,
    pub clock: Clock,
    pub engine_id: String,
    pub kv_addr: SocketAddr,
    pub http_addr: SocketAddr,
    /// vLLM's member of this name tells version and configuration; this one says what it is, too.
    pub system_fingerprint: String,
    ids: RandomState,
    next_id: AtomicU64,
}

impl App {
    pub fn new(
        config: EmulatorConfig,
        engine: EngineClient,
        clock: Clock,
        engine_id: String,
        kv_addr: SocketAddr,
        http_addr: SocketAddr,
    ) -> Self {
        let digest = sluice_sim::model::mix(config.seed, config.kv_bytes_per_token as u64) as u32;
        let system_fingerprint = format!("sluice-emulator-{}-{digest:08x}", config.wire.version());
        let ids = RandomState::new();
        Self {
            config,
            engine,
            clock,
            engine_id,
            kv_addr,
            http_addr,
            system_fingerprint,
            ids,
            next_id: AtomicU64::new(0),
        }
    }

    /// A 16-digit hex id that no other emulator or restart will use.
    fn random_id(&self) -> String {
        format!("{:016x}", self.ids.hash_one(self.next_id.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Serves one connection until it ends. A client that leaves drops its request, which aborts it.
pub(crate) async fn serve(stream: TcpStream, app: Arc<App>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection is gone before it began");
        return;
    }
    let service = service_fn(move |request| {
        let app = app.clone();
        async move { Ok::<_, Infallible>(respond(&app, request).await) }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection broke");
    }
}

async fn respond(app: &Arc<App>, request: Request<Incoming>) -> Response<Body> {
    let request_id = request.headers().get(REQUEST_ID).cloned();
    let mut response = route(app, request).await.unwrap_or_else(|refusal| refusal.response());
    response.headers_mut().insert(SERVER, HeaderValue::from_static("sluice-emulator"));
    if app.config.request_id_headers {
        let echoed = request_id.or_else(|| {
            let id = [app.random_id(), app.random_id()].concat();
            HeaderValue::try_from(id).ok()
        });
        response.headers_mut().extend(echoed.map(|id| (REQUEST_ID, id)));
    }
    response
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

async fn route(app: &Arc<App>, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    match (path.as_str(), request.method()) {
        ("/health" | "/ping", &Method::GET) => Ok(about::health(app).await),
        ("/version", &Method::GET) => about::version(app),
        ("/load", &Method::GET) => about::load(app).await,
        ("/v1/models", &Method::GET) => about::models(app),
        ("/metrics", &Method::GET) => about::metrics(app).await,
        ("/emulator/state", &Method::GET) => about::state(app).await,
        ("/v1/chat/completions", &Method::POST) => answer::generate(app, Endpoint::Chat, request).await,
        ("/v1/completions", &Method::POST) => answer::generate(app, Endpoint::Completions, request).await,
        ("/tokenize", &Method::POST) => tokenize::tokenize(app, &read_body(request).await?),
        ("/detokenize", &Method::POST) => tokenize::detokenize(&read_body(request).await?),
        (
            "/health"
            | "/ping"
            | "/version"
            | "/load"
            | "/v1/models"
            | "/metrics"
            | "/emulator/state"
            | "/v1/chat/completions"
            | "/v1/completions"
            | "/tokenize"
            | "/detokenize",
            _,
        ) => json(StatusCode::METHOD_NOT_ALLOWED, &serde_json::json!({"detail": "Method Not Allowed"})),
        _ => json(StatusCode::NOT_FOUND, &serde_json::json!({"detail": "Not Found"})),
    }
}

async fn read_body(request: Request<Incoming>) -> Result<Bytes, Refusal> {
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await;
    body.map(http_body_util::Collected::to_bytes)
        .map_err(|error| Refusal::bad_request(format!("the body could not be read: {error}")))
}

fn full(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn json(status: StatusCode, body: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(body).map_err(|_| Refusal::internal())?;
    Ok(full(status, "application/json", body))
}

impl From<Gone> for Refusal {
    fn from(_: Gone) -> Self {
        Self::internal()
    }
}

/// Counts a softened failure and answers as vLLM does when something broke inside.
fn softened(app: &App) -> Refusal {
    // An engine that is gone counts no more.
    let _ = app.engine.send(Command::CountSoftened);
    Refusal::internal()
}
