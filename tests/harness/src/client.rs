//! A small HTTP client: whole answers, streams with arrival times, and leaving at will.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::Client as Pooled;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use crate::{HarnessError, Metrics};

/// For a whole answer, or the next event of a stream: beyond it, something hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Idle connections are dropped before a server that closes after 5 s does.
const IDLE_CONNECTION_KEPT: Duration = Duration::from_secs(3);

/// A client of one server. Clones share connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: Pooled<HttpConnector, Full<Bytes>>,
    base: String,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// As they came.
    pub headers: HeaderMap,
    /// All of it.
    pub body: Bytes,
}

impl Answer {
    /// The body, or `null` when it is no JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The body.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header, if it is there and readable.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its payload.
    pub data: String,
    /// From the request's sending.
    pub after: Duration,
}

/// An answer that comes in events. Dropping it closes the connection, as a client does that goes away.
#[derive(Debug)]
pub struct EventStream {
    /// HTTP status.
    pub status: u16,
    /// As they came.
    pub headers: HeaderMap,
    body: Incoming,
    rest: BytesMut,
    sent: Instant,
    what: String,
}

impl Client {
    /// A client of `http://HOST:PORT`.
    pub fn new(base: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let http = Pooled::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION_KEPT)
            .build(connector);
        Self { http, base: base.trim_end_matches('/').to_owned() }
    }

    /// `http://HOST:PORT`
    pub fn base(&self) -> &str {
        &self.base
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Result<Answer, HarnessError> {
        self.request(Method::GET, path, Bytes::new(), &[]).await
    }

    /// POST of JSON, for a whole answer.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer, HarnessError> {
        self.request(Method::POST, path, body.to_string().into(), &[]).await
    }

    /// Any request, for a whole answer.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        headers: &[(&str, &str)],
    ) -> Result<Answer, HarnessError> {
        let what = format!("{method} {}{path}", self.base);
        let exchange = async {
            let (head, body) = self.send(method, path, body, headers, &what).await?.into_parts();
            let body = body.collect().await.map_err(|error| http_error(&what, &error))?.to_bytes();
            Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
        };
        within(&what, exchange).await
    }

    /// POST of JSON, for an answer in events. Returns with the answer's head.
    pub async fn stream(
        &self,
        path: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> Result<EventStream, HarnessError> {
        let what = format!("POST {}{path} (stream)", self.base);
        let sent = Instant::now();
        let sending = self.send(Method::POST, path, body.to_string().into(), headers, &what);
        let (head, body) = within(&what, sending).await?.into_parts();
        Ok(EventStream {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            rest: BytesMut::new(),
            sent,
            what,
        })
    }

    /// The server's `/metrics`.
    pub async fn metrics(&self) -> Result<Metrics, HarnessError> {
        let answer = self.get("/metrics").await?;
        let what = || format!("GET {}/metrics", self.base);
        if answer.status != 200 {
            return Err(HarnessError::Unexpected { what: what(), found: answer.status.to_string() });
        }
        Metrics::parse(&answer.text()).map_err(|line| HarnessError::Unexpected { what: what(), found: line })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        headers: &[(&str, &str)],
        what: &str,
    ) -> Result<Response<Incoming>, HarnessError> {
        let bad = |cause: String| HarnessError::Http { what: what.to_owned(), cause };
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = method;
        *request.uri_mut() =
            format!("{}{path}", self.base).parse().map_err(|_| bad("no such address".into()))?;
        if !body.is_empty() {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        for (name, value) in headers {
            let name = HeaderName::try_from(*name).map_err(|error| bad(error.to_string()))?;
            let value = HeaderValue::try_from(*value).map_err(|error| bad(error.to_string()))?;
            request.headers_mut().insert(name, value);
        }
        self.http.request(request).await.map_err(|error| http_error(what, &error))
    }
}

impl EventStream {
    /// The next event's payload; `None` at the end. A connection that breaks is an error.
    pub async fn next(&mut self) -> Result<Option<Event>, HarnessError> {
        loop {
            if let Some(data) = self.take_event() {
                return Ok(Some(Event { data, after: self.sent.elapsed() }));
            }
            let what = self.what.clone();
            let frame =
                async { self.body.frame().await.transpose().map_err(|error| http_error(&what, &error)) };
            match within(&what, frame).await? {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// All events that are left.
    pub async fn rest(mut self) -> Result<Vec<Event>, HarnessError> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await? {
            events.push(event);
        }
        Ok(events)
    }

    /// A header, if it is there and readable.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// What came as no event: the whole body, where the answer is an error.
    pub(crate) fn remainder(&self) -> &[u8] {
        &self.rest
    }

    fn take_event(&mut self) -> Option<String> {
        let event = self.rest.split_to(event_length(&self.rest)?);
        let text = String::from_utf8_lossy(&event);
        let lines = text.lines().filter_map(|line| line.strip_prefix("data:"));
        Some(lines.map(str::trim_start).collect::<Vec<_>>().join("\n"))
    }
}

/// Up to and with the first blank line, which may end as lines do on the web or on Unix.
fn event_length(text: &[u8]) -> Option<usize> {
    let after = |at: usize| match text.get(at + 1..)? {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    };
    let mut newlines = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    newlines.find_map(|(at, _)| after(at))
}

async fn within<T>(
    what: &str,
    exchange: impl Future<Output = Result<T, HarnessError>>,
) -> Result<T, HarnessError> {
    let late = || HarnessError::Late { what: what.to_owned(), within: ANSWER_WITHIN };
    timeout(ANSWER_WITHIN, exchange).await.unwrap_or_else(|_| Err(late()))
}

fn http_error(what: &str, error: &(dyn std::error::Error + 'static)) -> HarnessError {
    let mut cause = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        cause.push_str(": ");
        cause.push_str(&inner.to_string());
        source = inner.source();
    }
    HarnessError::Http { what: what.to_owned(), cause }
}
