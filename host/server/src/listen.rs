//! Accepting connections, serving them over HTTP/1, and draining them.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::metrics::counter::Counter;
use socket2::{SockRef, Socket, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::http::body::ResponseBody;
use crate::http::telling::Telling;
use crate::last_call;
use crate::stall::{AnswerDeadline, StallGuard};
use crate::threads::DataThreads;

/// How long a client may read nothing of what waits for it. Streams pause for seconds at most.
const WRITE_STALL_AT_MOST: Duration = Duration::from_secs(30);

/// Headers of one request, in bytes: room for large keys and trace state, none for header bombs.
const HEADER_BYTES_AT_MOST: usize = 64 * 1024;

/// Headers of one request.
const HEADERS_AT_MOST: usize = 100;

/// How long TLS's handshake may take, and never longer than headers may: two round trips and some arithmetic.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

/// Silence on a connection after which the system asks whether the client is still there, and between questions.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);

/// Connections still taken after the signal to stop: those that wait in the kernel, whose queue is as long.
const TAKEN_AFTER_STOP_AT_MOST: usize = 1_024;

/// After an accept that failed for want of descriptors: trying again at once would spin.
const PAUSE_AFTER_FAILED_ACCEPT: Duration = Duration::from_millis(50);

/// Between two log lines of one shortage.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Binds early, so that a taken port is told before anything else starts.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// How connections are served and ended.
#[derive(Clone)]
pub struct Serving {
    /// Connections open at one time. Past it new ones wait in the kernel's backlog.
    pub connections_at_most: usize,
    /// From a connection's start, or the end of its last answer, to the end of its next request's headers.
    pub header_timeout: Duration,
    /// From the end of a request's headers until its client must have taken the answer.
    pub request_timeout: Duration,
    /// From the signal to stop until connections are cut off.
    pub drain_timeout: Duration,
    /// Turns true when it is time to stop.
    pub stop: watch::Receiver<bool>,
    /// Shakes hands with clients; `None` serves plain HTTP.
    pub tls: Option<TlsServing>,
    /// Where connections are served; `None`: where they are accepted.
    pub threads: Option<Arc<DataThreads>>,
}

/// TLS towards clients.
#[derive(Clone)]
pub struct TlsServing {
    /// Shakes hands.
    pub acceptor: TlsAcceptor,
    /// Counts handshakes that failed.
    pub failures: Counter,
}

/// Serves connections until told to stop, then lets requests in flight end. Returns how many were cut off.
pub async fn serve<F, R>(listener: TcpListener, serving: Serving, handler: F) -> usize
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let places = Arc::new(Semaphore::new(serving.connections_at_most));
    let mut stop = serving.stop.clone();
    let mut late = 0;
    let mut shortage = Shortage::default();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => match already_here(&listener, &places) {
                accepted @ Some(_) if late < TAKEN_AFTER_STOP_AT_MOST => {
                    late += 1;
                    accepted
                }
                _ => break,
            },
            Some(_) = connections.join_next() => continue,
            accepted = shortage.accept(&listener, &places) => accepted,
        };
        let Some((stream, place)) = accepted else { continue };
        let handler = handler.clone();
        let (deadline, request_timeout) = (AnswerDeadline::new(), serving.request_timeout);
        let begun = deadline.clone();
        // The handler's future is the service's: around it another would have room for it twice.
        let service = service_fn(move |request| {
            begun.begin(request_timeout);
            handler(request)
        });
        let (header_timeout, tls) = (serving.header_timeout, serving.tls.clone());
        let stop = serving.stop.clone();
        let (runtime, thread_place) = serving.threads.as_ref().map(|threads| threads.place()).unzip();
        let connection = async move {
            // Registered with the event loop of the thread that serves it.
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            let stream = StallGuard::new(stream, WRITE_STALL_AT_MOST, deadline);
            match tls {
                None => converse(stream, service, header_timeout, stop).await,
                Some(tls) => {
                    if let Some(stream) = tls.shake_hands(stream, header_timeout).await {
                        converse(stream, service, header_timeout, stop).await;
                    }
                }
            }
            drop((place, thread_place));
        };
        match runtime {
            None => connections.spawn(connection),
            Some(runtime) => connections.spawn_on(connection, &runtime),
        };
    }
    drop(listener);
    let drained = timeout(serving.drain_timeout, async { while connections.join_next().await.is_some() {} });
    if drained.await.is_ok() {
        return 0;
    }
    while connections.try_join_next().is_some() {}
    let cut_off = connections.len();
    connections.shutdown().await;
    cut_off
}

/// A client that the system has let in before the listener closes: closing would reset its connection, and with it the
/// request that it may have sent.
fn already_here(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(std::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = places.clone().try_acquire_owned().ok()?;
    let (stream, _) = SockRef::from(listener).accept().ok()?;
    stream.set_nonblocking(true).ok()?;
    prepare(&stream);
    Some((stream.into(), place))
}

fn prepare(stream: &Socket) {
    // Without it a stream's small chunks wait for the client's delayed acknowledgement.
    let _ = stream.set_tcp_nodelay(true);
    // A client that vanished without a word is noticed, and its request ended.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_AFTER);
    let _ = stream.set_tcp_keepalive(&keepalive);
}

impl TlsServing {
    /// A handshake, within its time. One that fails is the client's own end, and is counted.
    async fn shake_hands<S>(&self, stream: S, header_timeout: Duration) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let within = HANDSHAKE_WITHIN.min(header_timeout);
        let error = match timeout(within, self.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("not within {} ms", within.as_millis()),
        };
        self.failures.inc();
        tracing::debug!("a client's TLS handshake failed: {error}");
        None
    }
}

/// Serves one connection until it ends.
async fn converse<S, H>(stream: S, service: H, header_timeout: Duration, stop: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    H: Service<Request<Incoming>, Response = Response<ResponseBody>, Error = Infallible>,
{
    // Its Date header panics, connection by connection, where this machine's clock is before 1970 or past 9999: such a
    // clock is no state to serve in.
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(HEADER_BYTES_AT_MOST)
        .max_header_size(HEADER_BYTES_AT_MOST)
        .max_headers(HEADERS_AT_MOST)
        // Events are small: one write of one piece costs less than of three.
        .writev(false)
        .serve_connection(TokioIo::new(Telling::new(stream)), service);
    last_call::serve(connection, stop).await;
}

/// Want of descriptors. It lasts until connections end, each of which tries again.
#[derive(Default)]
struct Shortage {
    until: Option<Instant>,
    told: Option<Instant>,
}

impl Shortage {
    /// The next connection; `None` when it cannot be had.
    async fn accept(
        &mut self,
        listener: &TcpListener,
        places: &Arc<Semaphore>,
    ) -> Option<(std::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
        if let Some(until) = self.until {
            sleep_until(until).await;
        }
        let place = places.clone().acquire_owned().await.ok()?;
        let error = match listener.accept().await {
            Ok((stream, _)) => {
                self.until = None;
                prepare(&SockRef::from(&stream));
                return Some((stream.into_std().ok()?, place));
            }
            Err(error) => error,
        };
        let now = Instant::now();
        self.until = Some(now + PAUSE_AFTER_FAILED_ACCEPT);
        if self.told.is_none_or(|told| now - told >= TOLD_AGAIN_AFTER) {
            self.told = Some(now);
            tracing::warn!("cannot accept a connection: {error}");
        }
        None
    }
}
