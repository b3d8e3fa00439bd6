//! Opening a connection to an engine.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};

use super::UpstreamError;
use crate::config::WorkerUrl;
use crate::tls::{ClientConnector, MaybeTls};

/// Silence on a connection after which the system asks whether the peer is still there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);

/// Questions without an answer until the connection counts as broken: a minute in all.
const KEEPALIVE_RETRIES: u32 = 3;

/// Opens a connection within `connect_timeout`, the name's resolution and TLS's handshake included.
pub(super) async fn open(
    worker: &WorkerUrl,
    connect_timeout: Duration,
    tls: Option<&ClientConnector>,
) -> Result<MaybeTls, UpstreamError> {
    let deadline = Instant::now() + connect_timeout;
    let opened = async {
        let stream = to_any(worker, connect_timeout).await?;
        // Without it a stream's small chunks wait for the peer's delayed acknowledgement, 40 ms each.
        stream.set_nodelay(true)?;
        // A worker that vanished without a word is noticed while a request waits for it.
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_AFTER)
            .with_interval(KEEPALIVE_AFTER)
            .with_retries(KEEPALIVE_RETRIES);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        if !worker.tls {
            return Ok(MaybeTls::Plain(stream));
        }
        let tls = tls.ok_or_else(|| io::Error::other("[upstream] has no ca_file"))?;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no TLS handshake in time");
        let shaken = timeout_at(deadline, tls.connect(worker, stream)).await.map_err(late)?;
        shaken.map_err(|error| io::Error::new(error.kind(), format!("TLS: {error}")))
    };
    opened.await.map_err(|error| {
        let (worker, cause) = (worker.to_string(), error.to_string());
        if is_local(&error) {
            UpstreamError::Local { worker, cause }
        } else {
            UpstreamError::Connect { worker, cause }
        }
    })
}

/// Tries a name's addresses in turn. Each but the last gets half of the time that is left, so that one that swallows
/// packets does not hide a good one behind it.
async fn to_any(worker: &WorkerUrl, connect_timeout: Duration) -> io::Result<TcpStream> {
    let late =
        || io::Error::new(io::ErrorKind::TimedOut, format!("not within {} ms", connect_timeout.as_millis()));
    let deadline = Instant::now() + connect_timeout;
    let addresses: Vec<SocketAddr> = timeout_at(deadline, lookup_host((worker.host.as_str(), worker.port)))
        .await
        .map_err(|_| late())??
        .collect();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (left, address) in (0..addresses.len()).rev().zip(&addresses) {
        let time_left = deadline.saturating_duration_since(Instant::now());
        let share = if left == 0 { time_left } else { time_left / 2 };
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = late(),
        }
    }
    Err(failure)
}

/// Whether a connection failed for want of something on this host: no descriptor, no port, no memory.
fn is_local(error: &io::Error) -> bool {
    error.raw_os_error().map(Errno::from_raw_os_error).is_some_and(|code| {
        matches!(code, Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL | Errno::NOBUFS | Errno::NOMEM)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_here_is_not_the_workers_fault() {
        for (code, local) in [
            (Errno::MFILE, true),
            (Errno::ADDRNOTAVAIL, true),
            (Errno::CONNREFUSED, false),
            (Errno::HOSTUNREACH, false),
            (Errno::TIMEDOUT, false),
        ] {
            assert_eq!(is_local(&io::Error::from_raw_os_error(code.raw_os_error())), local, "{code:?}");
        }
        assert!(!is_local(&io::Error::other("no code")));
    }
}
