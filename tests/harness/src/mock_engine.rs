//! An engine of canned answers that records what it is asked: for checking bodies exactly, and for misbehaving.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsAcceptor;

use crate::HarnessError;
use crate::odd_connections::{raw_connection, short_connection};

pub use crate::odd_connections::Closes;

/// A request that came.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Path.
    pub path: String,
    /// As they came.
    pub headers: HeaderMap,
    /// `null` when it is no JSON.
    pub body: Value,
}

impl Recorded {
    /// Whether this is the first leg of a disaggregated request.
    pub fn is_prefill(&self) -> bool {
        self.body["kv_transfer_params"]["do_remote_decode"] == true
    }

    /// A header, if it is there and readable.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// How a canned answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// As it should.
    Whole,
    /// The connection breaks.
    BrokenOff,
    /// It goes on for ever, in silence.
    Never,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Canned {
    /// HTTP status.
    pub status: u16,
    /// Of the body.
    pub content_type: &'static str,
    /// The body, piece by piece.
    pub pieces: Vec<Bytes>,
    /// How it ends.
    pub end: End,
    /// More headers.
    pub headers: Vec<(&'static str, &'static str)>,
    /// How long the body comes after the head, which is sent alone then.
    pub body_after: Duration,
    /// Whether not even a head comes: the connection stays open, in silence.
    pub silent: bool,
}

impl Canned {
    /// A whole JSON answer.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::text(status, "application/json", body.to_string())
    }

    /// A whole answer of any kind.
    pub fn text(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            content_type,
            pieces: vec![body.into()],
            end: End::Whole,
            headers: Vec::new(),
            body_after: Duration::ZERO,
            silent: false,
        }
    }

    /// A stream of events, each a payload.
    pub fn events(payloads: &[&str], end: End) -> Self {
        let pieces = payloads.iter().map(|payload| Bytes::from(format!("data: {payload}\n\n"))).collect();
        Self { pieces, end, ..Self::text(200, "text/event-stream; charset=utf-8", "") }
    }

    /// A stream of these very pieces, each in a write of its own.
    pub fn stream(pieces: &[&str], end: End) -> Self {
        let pieces = pieces.iter().map(|piece| Bytes::from((*piece).to_owned())).collect();
        Self { pieces, ..Self::events(&[], end) }
    }

    /// No answer, and no end of the connection either.
    pub fn silence() -> Self {
        Self { silent: true, ..Self::text(200, "text/plain", "") }
    }

    /// The same with one more header.
    pub fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The same, its body so long after its head.
    pub fn body_after(self, body_after: Duration) -> Self {
        Self { body_after, ..self }
    }

    /// A prefill leg's answer: one token, and a handle.
    pub fn prefilled() -> Self {
        Self::json(
            200,
            &json!({
                "id": "cmpl-1", "object": "text_completion", "model": "emulated",
                "choices": [{"index": 0, "text": " x", "finish_reason": "length"}],
                "usage": {"prompt_tokens": 7, "total_tokens": 8, "completion_tokens": 1},
                "kv_transfer_params": handle(),
            }),
        )
    }

    /// A whole answer of two words.
    pub fn completed() -> Self {
        Self::json(
            200,
            &json!({
                "id": "cmpl-2", "object": "text_completion", "model": "emulated",
                "choices": [{"index": 0, "text": " two words", "finish_reason": "length"}],
                "usage": {"prompt_tokens": 7, "total_tokens": 9, "completion_tokens": 2},
                "kv_transfer_params": null,
            }),
        )
    }
}

/// The handle that [`Canned::prefilled`] gives.
pub fn handle() -> Value {
    json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": "engine-p",
        "remote_request_id": "cmpl-1", "remote_host": "127.0.0.1", "remote_port": 5600,
        "remote_block_ids": [[1, 2]], "tp_size": 1, "remote_num_tokens": 7,
    })
}

/// A running mock. Dropping it ends it.
#[derive(Debug)]
pub struct MockEngine {
    url: String,
    seen: Arc<Mutex<Vec<Recorded>>>,
    answering: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

/// Where mocks listen unless told otherwise.
const LOOPBACK: &str = "127.0.0.1:0";

/// What mocks say that they are unless told otherwise.
const VERSION: &str = "0.32.0";

type Script = dyn Fn(&Recorded) -> Canned + Send + Sync;

impl MockEngine {
    /// An engine that is healthy, and answers generation requests as `script` says.
    pub async fn start(
        script: impl Fn(&Recorded) -> Canned + Send + Sync + 'static,
    ) -> Result<Self, HarnessError> {
        Self::start_at(LOOPBACK, None, script).await
    }

    /// The same of another version of vLLM, by what it says.
    pub async fn of_version(
        version: &'static str,
        script: impl Fn(&Recorded) -> Canned + Send + Sync + 'static,
    ) -> Result<Self, HarnessError> {
        Self::start_as(version, LOOPBACK, None, script).await
    }

    /// The same at an address of choice, over TLS if there is an acceptor.
    pub async fn start_at(
        address: &str,
        tls: Option<TlsAcceptor>,
        script: impl Fn(&Recorded) -> Canned + Send + Sync + 'static,
    ) -> Result<Self, HarnessError> {
        Self::start_as(VERSION, address, tls, script).await
    }

    async fn start_as(
        version: &'static str,
        address: &str,
        tls: Option<TlsAcceptor>,
        script: impl Fn(&Recorded) -> Canned + Send + Sync + 'static,
    ) -> Result<Self, HarnessError> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let script: Arc<Script> = Arc::new(script);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let answering = Arc::new(AtomicUsize::new(0));
        let (recorder, counter) = (seen.clone(), answering.clone());
        let engine = Self::listen(address, seen, move |stream| {
            let (script, seen, answering) = (script.clone(), recorder.clone(), counter.clone());
            let tls = tls.clone();
            async move {
                let service = service_fn(move |request| {
                    let (script, seen, answering) = (script.clone(), seen.clone(), answering.clone());
                    async move {
                        let answering = Answering::begin(answering);
                        let response = respond(version, &*script, &seen, request).await;
                        Ok::<_, Infallible>(
                            response.map(|body| CannedBody { _answering: Some(answering), ..body }),
                        )
                    }
                });
                // A connection that breaks is part of the play.
                let http = http1::Builder::new();
                if let Some(tls) = tls {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                } else {
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                }
            }
        })
        .await?;
        let url = engine.url.replacen("http", scheme, 1);
        Ok(Self { answering, url, ..engine })
    }

    /// An engine that prefills and decodes, always with the same words.
    pub async fn well_behaved() -> Result<Self, HarnessError> {
        Self::start(|request| if request.is_prefill() { Canned::prefilled() } else { Canned::completed() })
            .await
    }

    /// A server that is healthy, and answers generation requests with these very bytes, HTTP or not.
    pub async fn raw(bytes: &'static [u8]) -> Result<Self, HarnessError> {
        Self::listen(LOOPBACK, Arc::default(), move |stream| async move {
            let _ = raw_connection(stream, bytes).await;
        })
        .await
    }

    /// An engine whose every connection is good for one generation request, which it does not say: as `closes` says,
    /// the connection is closed after the answer, or when the next request comes.
    pub async fn one_answer_a_connection(closes: Closes) -> Result<Self, HarnessError> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let recorder = seen.clone();
        Self::listen(LOOPBACK, seen, move |stream| {
            let seen = recorder.clone();
            async move {
                let _ = short_connection(stream, closes, &seen).await;
            }
        })
        .await
    }

    async fn listen<F, R>(
        address: &str,
        seen: Arc<Mutex<Vec<Recorded>>>,
        serve: F,
    ) -> Result<Self, HarnessError>
    where
        F: Fn(TcpStream) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.map_err(HarnessError::io("listen"))?;
        let address = listener.local_addr().map_err(HarnessError::io("listen"))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream));
            }
        });
        Ok(Self { url: format!("http://{address}"), seen, answering: Arc::default(), _tasks: tasks })
    }

    /// `http://HOST:PORT`
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Answers under way now, those to probes among them. A connection that closes ends its own.
    pub fn answering(&self) -> usize {
        self.answering.load(Ordering::SeqCst)
    }

    /// The generation requests that came, in order.
    pub fn seen(&self) -> Vec<Recorded> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

const METRICS: &str = "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"0\"} 0\n\
    vllm:kv_cache_usage_perc{engine=\"0\"} 0\n\
    vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1\n";

async fn respond(
    version: &str,
    script: &Script,
    seen: &Mutex<Vec<Recorded>>,
    request: Request<Incoming>,
) -> Response<CannedBody> {
    let (head, body) = request.into_parts();
    let canned = match head.uri.path() {
        "/health" => Canned::text(200, "text/plain", ""),
        "/version" => Canned::json(200, &json!({"version": version})),
        "/metrics" => Canned::text(200, "text/plain", METRICS),
        "/v1/models" => Canned::json(
            200,
            &json!({"object": "list", "data": [{"id": "emulated", "object": "model"}, {"id": "tiny", "object": "model"}]}),
        ),
        path => {
            let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            let body = serde_json::from_slice(&bytes).unwrap_or_default();
            let recorded = Recorded { path: path.to_owned(), headers: head.headers, body };
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(recorded.clone());
            script(&recorded)
        }
    };
    if canned.silent {
        std::future::pending::<()>().await;
    }
    let wait = (!canned.body_after.is_zero()).then(|| Box::pin(sleep(canned.body_after)));
    let mut response = Response::new(CannedBody {
        _answering: None,
        pieces: canned.pieces.into(),
        end: canned.end,
        flushed: false,
        wait,
    });
    *response.status_mut() = StatusCode::from_u16(canned.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(canned.content_type));
    for (name, value) in canned.headers {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Counts as an answer until it is dropped.
struct Answering(Arc<AtomicUsize>);

impl Answering {
    fn begin(count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct CannedBody {
    _answering: Option<Answering>,
    pieces: VecDeque<Bytes>,
    end: End,
    flushed: bool,
    wait: Option<Pin<Box<Sleep>>>,
}

impl Body for CannedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(wait) = &mut self.wait {
            if wait.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.wait = None;
        }
        if let Some(piece) = self.pieces.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        match self.end {
            End::Whole => Poll::Ready(None),
            End::Never => Poll::Pending,
            End::BrokenOff if self.flushed => {
                Poll::Ready(Some(Err(io::Error::other("broken off on purpose"))))
            }
            // The server flushes what it has when a body is not ready: only then may the connection break.
            End::BrokenOff => {
                self.flushed = true;
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}
