//! The mock engine: answers at once, or chunk by chunk, from memory. One thread, no parsing: it must cost far less than
//! what is measured in front of it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use memchr::memmem::{Finder, find};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::canned::{self, CHUNKS, Mark, Served};

const METRICS: &str = "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"0\"} 0\n\
    vllm:kv_cache_usage_perc{engine=\"0\"} 0\n\
    vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100000\"} 1\n";

/// Serves on a listener for ever.
pub async fn serve(listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(stream));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(async |request| Ok::<_, Infallible>(respond(request).await));
    // A router that closes its connection is no fault of the mock's.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(request: Request<Incoming>) -> Response<Answer> {
    let path = request.uri().path().to_owned();
    if path.starts_with("/v1/") && path.ends_with("completions") {
        let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
        return generate(&body.unwrap_or_default());
    }
    match path.as_str() {
        "/health" => whole("text/plain", Bytes::new()),
        "/version" => whole("application/json", Bytes::from_static(b"{\"version\":\"0.32.0\"}")),
        "/metrics" => whole("text/plain", Bytes::from_static(METRICS.as_bytes())),
        "/v1/models" => {
            let models = format!(
                "{{\"object\":\"list\",\"data\":[{{\"id\":\"{}\",\"object\":\"model\"}}]}}",
                canned::MODEL
            );
            whole("application/json", models.into())
        }
        _ => {
            let mut missing = whole("text/plain", Bytes::new());
            *missing.status_mut() = hyper::StatusCode::NOT_FOUND;
            missing
        }
    }
}

fn generate(body: &[u8]) -> Response<Answer> {
    thread_local! {
        static PREFILLS: [Finder<'static>; 2] =
            [Finder::new("\"do_remote_decode\":true"), Finder::new("\"do_remote_decode\": true")];
        static PULLS: Finder<'static> = Finder::new("\"remote_engine_id\":\"");
    }
    let Some(mark) = Mark::find(body) else {
        let mut refused =
            whole("application/json", Bytes::from_static(b"{\"error\":{\"message\":\"no mark\"}}"));
        *refused.status_mut() = hyper::StatusCode::BAD_REQUEST;
        return refused;
    };
    if PREFILLS.with(|finders| finders.iter().any(|finder| finder.find(body).is_some())) {
        return whole("application/json", canned::prefilled(mark));
    }
    let pulled = PULLS.with(|finder| finder.find(body).is_some());
    let served = if pulled { Served::Pulled } else { Served::Alone };
    let streams =
        [&b"\"stream\":true"[..], b"\"stream\": true"].iter().any(|text| find(body, text).is_some());
    if streams {
        let answer = Answer::Stream(Box::new(Stream::new(mark, served)));
        return response("text/event-stream; charset=utf-8", answer);
    }
    whole("application/json", canned::whole(mark, served))
}

fn whole(kind: &'static str, bytes: Bytes) -> Response<Answer> {
    response(kind, Answer::Whole(Some(bytes)))
}

fn response(kind: &'static str, answer: Answer) -> Response<Answer> {
    let mut response = Response::new(answer);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A body.
enum Answer {
    Whole(Option<Bytes>),
    Stream(Box<Stream>),
}

/// Chunks, each in a write of its own.
struct Stream {
    first: Option<Bytes>,
    middle: Bytes,
    last: [Bytes; 2],
    sent: usize,
    /// The server writes what it has only when a body is not ready: each chunk is followed by such a moment.
    flushing: bool,
    pace: Option<(Duration, Pin<Box<Sleep>>)>,
}

thread_local! {
    /// All chunks but a stream's first.
    static LATER: (Bytes, [Bytes; 2]) = (canned::middle_chunk(), canned::last_chunks());
}

impl Stream {
    fn new(mark: Mark, served: Served) -> Self {
        let pace = Duration::from_millis(mark.pace_ms.into());
        let pace = (!pace.is_zero()).then(|| (pace, Box::pin(sleep_until(Instant::now() + pace))));
        let (middle, last) = LATER.with(|(middle, last)| (middle.clone(), last.clone()));
        Self { first: Some(canned::first_chunk(mark, served)), middle, last, sent: 0, flushing: false, pace }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.sent == CHUNKS + 1 {
            return Poll::Ready(None);
        }
        if let Some((pace, sleep)) = &mut self.pace {
            // `[DONE]` follows the last chunk at once.
            if self.sent < CHUNKS {
                if sleep.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                let next = sleep.deadline() + *pace;
                sleep.as_mut().reset(next);
            }
        } else if std::mem::replace(&mut self.flushing, true) {
            self.flushing = false;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.sent += 1;
        let [last, done] = &self.last;
        Poll::Ready(Some(match self.first.take() {
            Some(first) => first,
            None if self.sent == CHUNKS => last.clone(),
            None if self.sent > CHUNKS => done.clone(),
            None => self.middle.clone(),
        }))
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take()),
            Self::Stream(stream) => stream.poll(context),
        };
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
