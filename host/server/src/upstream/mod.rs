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
use std::time::Duration;

use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, Uri};

pub use link::UpstreamBody;

use crate::config::WorkerUrl;
use crate::http::segments::Segments;
use crate::tls::ClientConnector;
use idle::Idle;
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
}

impl Upstream {
    /// A client whose connections must stand within `connect_timeout`, for a host of so many data threads. Without `tls`
    /// no worker's url may be https.
    pub fn new(connect_timeout: Duration, threads: usize, tls: Option<ClientConnector>) -> Self {
        Self { connect_timeout, tls, idle: Arc::new(Idle::new(threads)) }
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
        while let Some(mut link) = self.idle.take(&worker.authority) {
            if !link.is_open().await {
                continue;
            }
            match link.exchange(request).await {
                Ok(head) => return Ok(UpstreamBody::of(head, link, self.idle.clone(), &worker.authority)),
                Err(Broke::Unsent(unsent)) => request = *unsent,
                Err(Broke::Sent(cause)) => return Err(broke(cause, true)),
            }
        }
        let stream = connect::open(worker, self.connect_timeout, self.tls.as_ref()).await?;
        let mut link = Link::over(stream).await.map_err(broken)?;
        match link.exchange(request).await {
            Ok(head) => Ok(UpstreamBody::of(head, link, self.idle.clone(), &worker.authority)),
            Err(Broke::Unsent(_)) => Err(broken("closed before the request was sent".to_owned())),
            Err(Broke::Sent(cause)) => Err(broken(cause)),
        }
    }

    /// Closes connections that were idle for too long.
    pub fn sweep(&self) {
        self.idle.sweep();
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
