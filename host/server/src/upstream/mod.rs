//! The HTTP client towards engines, with its connections kept between requests.
//!
//! A connection is driven by the request that uses it, on the thread of the client it is for: no other task is woken
//! on the way. Dropping a response, or the future that waits for one, closes its connection: that is how a client's
//! disconnect reaches an engine, which then ends the sequence and frees its blocks.

mod connect;
mod idle;
mod link;
mod quiet;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, Uri};

pub use idle::IDLE_CONNECTIONS_AT_MOST;
pub use link::UpstreamBody;

use crate::config::WorkerUrl;
use crate::http::body_budget::{BodyBudget, LARGE_BODIES_BYTES_AT_MOST};
use crate::http::segments::Segments;
use crate::tls::ClientConnector;
use idle::{Idle, Peer};
use link::{Broke, Link};

/// Why an engine gave no answer. What it means for a retry is the pipeline's to say.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No connection: the request was not sent.
    #[error("cannot connect to {worker}: {cause}")]
    Connect {
        /// Address.
        worker: String,
        /// The system's words.
        cause: String,
    },
    /// This host lacks something of its own, like descriptors or ports: the worker may be well.
    #[error(
        "cannot open a connection to {worker} from here: {cause}; are the host's open files limited (ulimit -n)?"
    )]
    Local {
        /// Address.
        worker: String,
        /// The system's words.
        cause: String,
    },
    /// The connection broke before an answer came.
    #[error("{worker} broke the connection before it answered: {cause}")]
    Broken {
        /// Address.
        worker: String,
        /// What broke.
        cause: String,
        /// Whether it was an idle one, kept since an earlier request: most likely the engine was just closing it.
        was_kept: bool,
    },
}

/// The client. Clones share the connections.
#[derive(Debug, Clone)]
pub struct Upstream {
    connect_timeout: Duration,
    tls: Option<ClientConnector>,
    idle: Arc<Idle>,
    /// What all whole answers may take while they are read and passed on.
    answers: Arc<BodyBudget>,
}

impl Upstream {
    /// A client whose connections must stand within `connect_timeout`, for a host of so many data threads. Without `tls`
    /// no worker's url may be https.
    pub fn new(connect_timeout: Duration, threads: usize, tls: Option<ClientConnector>) -> Self {
        let answers = BodyBudget::new(LARGE_BODIES_BYTES_AT_MOST);
        Self { connect_timeout, tls, idle: Arc::new(Idle::new(threads)), answers }
    }

    /// Sends a request and waits for the answer's head.
    pub async fn send(
        &self,
        method: Method,
        worker: &WorkerUrl,
        path: &str,
        body: impl Into<Segments>,
        headers: HeaderMap,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        let broke =
            |cause: String, was_kept| UpstreamError::Broken { worker: worker.to_string(), cause, was_kept };
        let broken = |cause: String| broke(cause, false);
        let mut request = request(method, worker, path, body.into(), headers).map_err(broken)?;
        // A kept connection that its engine has closed meanwhile is found before anything is sent on it; one that
        // closes at this very moment gives the request back unsent.
        while let Some(mut link) = self.idle.take(worker) {
            if !link.is_open().await {
                continue;
            }
            match link.exchange(request).await {
                Ok(head) => return Ok(self.body(head, link, worker)),
                Err(Broke::Unsent(unsent)) => request = *unsent,
                Err(Broke::Sent(cause)) => return Err(broke(cause, true)),
            }
        }
        // Boxed: most requests find a kept connection, and have no use for room for this.
        let open = || Box::pin(connect::open(worker, self.connect_timeout, self.tls.as_ref()));
        let stream = or_make_room(&self.idle, open).await?;
        let mut link = Link::over(stream).await.map_err(broken)?;
        match link.exchange(request).await {
            Ok(head) => Ok(self.body(head, link, worker)),
            Err(Broke::Unsent(_)) => Err(broken("closed before the request was sent".to_owned())),
            Err(Broke::Sent(cause)) => Err(broken(cause)),
        }
    }

    fn body(&self, head: Response<Incoming>, link: Box<Link>, worker: &WorkerUrl) -> Response<UpstreamBody> {
        UpstreamBody::of(head, link, (self.idle.clone(), Peer::of(worker)), self.answers.clone())
    }

    /// Closes connections that were idle for too long.
    pub fn sweep(&self) {
        self.idle.sweep();
    }
}

/// Opens a connection. When this host is short of what one takes, the idle ones are closed for it: kept for speed alone,
/// they must not fail a request.
async fn or_make_room<S, F>(idle: &Idle, open: impl Fn() -> F) -> Result<S, UpstreamError>
where
    F: Future<Output = Result<S, UpstreamError>>,
{
    static TOLD: AtomicBool = AtomicBool::new(false);
    match open().await {
        Err(short @ UpstreamError::Local { .. }) if idle.clear() => {
            if !TOLD.swap(true, Ordering::Relaxed) {
                tracing::warn!("idle connections to engines are closed to make room (said once): {short}");
            }
            open().await
        }
        opened => opened,
    }
}

fn request(
    method: Method,
    worker: &WorkerUrl,
    path: &str,
    body: Segments,
    mut headers: HeaderMap,
) -> Result<Request<Segments>, String> {
    let uri: Uri = path.parse().map_err(|error| format!("bad path: {error}"))?;
    headers.insert(
        HOST,
        HeaderValue::from_str(&worker.authority).map_err(|error| format!("bad host: {error}"))?,
    );
    if !body.is_empty() {
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    }
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Ok(request)
}

/// An error and what it came from, on one line.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::idle::tests::{links, url};
    use super::*;

    /// Opens at the second try, or never.
    async fn check(keeps_one: bool, expected: (bool, usize)) {
        let idle = Idle::new(1);
        let (_listener, [link]) = links().await;
        if keeps_one {
            idle.keep(&Peer::of(&url("http://127.0.0.1:8000")), link);
        }
        let tries = AtomicUsize::new(0);
        let opened = or_make_room(&idle, || async {
            let short =
                || UpstreamError::Local { worker: "w".to_owned(), cause: "too many open files".to_owned() };
            if tries.fetch_add(1, Ordering::Relaxed) == 0 { Err(short()) } else { Ok(()) }
        });
        assert_eq!((opened.await.is_ok(), tries.load(Ordering::Relaxed)), expected);
        assert!(idle.take(&url("http://127.0.0.1:8000")).is_none());
    }

    #[tokio::test]
    async fn a_shortage_closes_idle_connections_before_it_fails_a_request() {
        check(true, (true, 2)).await;
        // Nothing can be freed: another try would be as short.
        check(false, (false, 1)).await;
    }
}
