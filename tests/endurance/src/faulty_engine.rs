//! Stands before an engine and spoils some of its legs. To the router it is the engine: same answers, same address for
//! ever, though the engine behind it may be killed and come back elsewhere.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::fault_plan::{Fault, HANG, STALL, fault};

/// What all connections share.
#[derive(Debug)]
struct Shared {
    engine: Mutex<SocketAddr>,
    seed: u64,
    legs: AtomicU64,
    faults: AtomicU64,
}

/// A running front. Dropping it ends it.
#[derive(Debug)]
pub struct FaultyEngine {
    address: SocketAddr,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

impl FaultyEngine {
    /// A front of an engine; another seed, other legs spoilt.
    pub async fn start(engine: SocketAddr, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let counters = (AtomicU64::new(0), AtomicU64::new(0));
        let shared = Shared { engine: Mutex::new(engine), seed, legs: counters.0, faults: counters.1 };
        let shared = Arc::new(shared);
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, shared.clone()));
        Ok(Self { address, shared, _serving: serving })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The engine is elsewhere now.
    pub fn moved_to(&self, engine: SocketAddr) {
        *self.shared.engine.lock().unwrap_or_else(PoisonError::into_inner) = engine;
    }

    /// Legs spoilt so far.
    pub fn faults(&self) -> u64 {
        self.shared.faults.load(Ordering::Relaxed)
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(stream, shared.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    // Requests on a connection come one after another: the lock is never waited for.
    let engine = Arc::new(tokio::sync::Mutex::new(None));
    let service = service_fn(move |request| {
        let (shared, engine) = (shared.clone(), engine.clone());
        async move { respond(request, &shared, &mut *engine.lock().await).await }
    });
    // Breaking connections is what this is for.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// A connection to the engine.
struct Engine {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

/// An error closes the router's connection without an answer.
async fn respond(
    request: Request<Incoming>,
    shared: &Shared,
    engine: &mut Option<Engine>,
) -> io::Result<Response<Answer>> {
    let is_leg = request.method() == Method::POST;
    let leg = is_leg.then(|| shared.legs.fetch_add(1, Ordering::Relaxed));
    let fault = leg.and_then(|leg| fault(shared.seed, leg));
    if fault.is_some() {
        shared.faults.fetch_add(1, Ordering::Relaxed);
    }
    match fault {
        Some(Fault::Status500) => {
            return Ok(canned(
                StatusCode::INTERNAL_SERVER_ERROR,
                "application/json",
                "{\"error\":{\"code\":500}}",
            ));
        }
        Some(Fault::Page) => return Ok(canned(StatusCode::OK, "text/html", "<html>It works!</html>")),
        Some(Fault::HalfJson) => {
            return Ok(canned(StatusCode::OK, "application/json", "{\"id\":\"x\",\"choices\":"));
        }
        Some(Fault::Hang) => {
            sleep(HANG).await;
            return Err(io::Error::other("closed after a long silence, on purpose"));
        }
        Some(Fault::Stall) => sleep(STALL).await,
        _ => {}
    }
    let response = forward(request, shared, engine).await?;
    match fault {
        Some(Fault::ClosedUnanswered) => {
            let _ = response.into_body().collect().await;
            Err(io::Error::other("closed without an answer, on purpose"))
        }
        Some(Fault::BrokenOff) => Ok(response.map(|body| Answer::Cut { body, halved: false })),
        Some(Fault::NoHandle) => without_handle(response).await,
        _ => Ok(response.map(Answer::Relayed)),
    }
}

async fn forward(
    request: Request<Incoming>,
    shared: &Shared,
    engine: &mut Option<Engine>,
) -> io::Result<Response<Incoming>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let address = *shared.engine.lock().unwrap_or_else(PoisonError::into_inner);
    let is_open = match engine {
        Some(open) => open.sender.ready().await.is_ok(),
        None => false,
    };
    if !is_open {
        *engine = Some(connect(address).await?);
    }
    let Some(open) = engine else { return Err(io::ErrorKind::NotConnected.into()) };
    open.sender.send_request(Request::from_parts(head, Full::new(body))).await.map_err(io::Error::other)
}

async fn connect(address: SocketAddr) -> io::Result<Engine> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        let _ = connection.await;
    });
    Ok(Engine { sender, _driver: driver })
}

async fn without_handle(response: Response<Incoming>) -> io::Result<Response<Answer>> {
    let (mut head, body) = response.into_parts();
    let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let bytes = match serde_json::from_slice::<serde_json::Value>(&bytes) {
        Ok(serde_json::Value::Object(mut members)) => {
            members.insert("kv_transfer_params".into(), serde_json::Value::Null);
            serde_json::Value::Object(members).to_string().into()
        }
        // A stream, or an error: there is no handle in it.
        _ => bytes,
    };
    head.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(head, Answer::Whole(Some(bytes))))
}

fn canned(status: StatusCode, kind: &'static str, body: &'static str) -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(Some(Bytes::from_static(body.as_bytes()))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A body.
enum Answer {
    Whole(Option<Bytes>),
    Relayed(Incoming),
    /// Breaks off within its first piece.
    Cut {
        body: Incoming,
        halved: bool,
    },
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relayed(body) => Pin::new(body)
                .poll_frame(context)
                .map(|frame| frame.map(|frame| frame.map_err(io::Error::other))),
            Self::Cut { halved: true, .. } => {
                Poll::Ready(Some(Err(io::Error::other("broken off on purpose"))))
            }
            Self::Cut { body, halved } => {
                let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else { return Poll::Pending };
                *halved = true;
                let piece =
                    frame.and_then(Result::ok).and_then(|frame| frame.into_data().ok()).unwrap_or_default();
                Poll::Ready(Some(Ok(Frame::data(piece.slice(..piece.len() / 2)))))
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Relayed(body) | Self::Cut { body, .. } => body.size_hint(),
        }
    }
}
