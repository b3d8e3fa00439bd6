//! The pooled HTTP client towards engines.
//!
//! Dropping a response, or the future that waits for one, closes its connection: that is how a client's
//! disconnect reaches an engine, which then ends the sequence and frees its blocks.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustix::io::Errno;

use crate::config::WorkerUrl;

/// Idle connections kept per worker. Beyond it, a burst's connections are closed when they fall idle.
const IDLE_CONNECTIONS_PER_WORKER: usize = 256;

/// How long an idle connection is kept. uvicorn, vLLM's server, closes after 5 s: closing first keeps requests
/// off connections that are about to go.
const IDLE_CONNECTION_KEPT: Duration = Duration::from_millis(3_000);

/// Silence on a connection after which the system asks whether the peer is still there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);

/// Questions without an answer until the connection counts as broken: a minute in all.
const KEEPALIVE_RETRIES: u32 = 3;

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
    },
}

/// The client. Clones share one pool.
#[derive(Debug, Clone)]
pub struct Upstream {
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Upstream {
    /// A client whose connections must stand within `connect_timeout`.
    pub fn new(connect_timeout: Duration) -> Self {
        let mut connector = HttpConnector::new();
        // Without it a stream's small chunks wait for the peer's delayed acknowledgement, 40 ms each.
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(connect_timeout));
        // A worker that vanished without a word is noticed while a request waits for it.
        connector.set_keepalive(Some(KEEPALIVE_AFTER));
        connector.set_keepalive_interval(Some(KEEPALIVE_AFTER));
        connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION_KEPT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_PER_WORKER)
            .build(connector);
        Self { client }
    }

    /// Sends a request and waits for the answer's head.
    pub async fn send(
        &self,
        method: Method,
        worker: &WorkerUrl,
        path: &str,
        body: Bytes,
        mut headers: HeaderMap,
    ) -> Result<Response<Incoming>, UpstreamError> {
        let broken = |cause: String| UpstreamError::Broken { worker: worker.to_string(), cause };
        let uri: Uri =
            format!("{worker}{path}").parse().map_err(|error| broken(format!("bad address: {error}")))?;
        let host =
            HeaderValue::from_str(&worker.authority).map_err(|error| broken(format!("bad host: {error}")))?;
        headers.insert(HOST, host);
        if !body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        self.client.request(request).await.map_err(|error| {
            let cause = causes(&error);
            match error.is_connect() {
                false => broken(cause),
                true if is_local(&error) => UpstreamError::Local { worker: worker.to_string(), cause },
                true => UpstreamError::Connect { worker: worker.to_string(), cause },
            }
        })
    }
}

/// Whether a connection failed for want of something on this host: no descriptor, no port, no memory.
fn is_local(error: &(dyn std::error::Error + 'static)) -> bool {
    let system_code = |error: &(dyn std::error::Error + 'static)| {
        error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error)
    };
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.filter_map(system_code).map(Errno::from_raw_os_error).any(|code| {
        matches!(code, Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL | Errno::NOBUFS | Errno::NOMEM)
    })
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
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("connect")]
    struct Connect(#[source] std::io::Error);

    #[test]
    fn a_shortage_here_is_not_the_workers_fault() {
        for (code, local) in [
            (Errno::MFILE, true),
            (Errno::ADDRNOTAVAIL, true),
            (Errno::CONNREFUSED, false),
            (Errno::HOSTUNREACH, false),
            (Errno::TIMEDOUT, false),
        ] {
            let error = Connect(std::io::Error::from_raw_os_error(code.raw_os_error()));
            assert_eq!(is_local(&error), local, "{code:?}");
        }
        assert!(!is_local(&Connect(std::io::Error::other("no code"))));
    }
}
