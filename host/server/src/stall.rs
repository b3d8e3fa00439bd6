//! A connection that gives up on a peer that stopped reading, or that reads too slowly.
//!
//! hyper asks a body for more only once its own buffer is written, so a body's own deadline never fires while a
//! client does not read; without this such a client would hold its request, its load and the engine's sequence.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// How long before its request's own end a client that has not read what waits for it is given up. The body's deadline
/// speaks against the engine, which must not be blamed for a client that kept it waiting.
const BEFORE_THE_END: Duration = Duration::from_millis(50);

/// No request yet.
const NEVER: u64 = u64::MAX;

/// When the request that a connection serves is to be over: set where requests begin, kept where answers are written.
#[derive(Debug, Clone)]
pub struct AnswerDeadline {
    opened: Instant,
    /// Since `opened`, in ms.
    over_at_ms: Arc<AtomicU64>,
}

impl AnswerDeadline {
    /// Of a connection without a request.
    pub fn new() -> Self {
        Self { opened: Instant::now(), over_at_ms: Arc::new(AtomicU64::new(NEVER)) }
    }

    /// A request begins, which may take this long.
    pub fn begin(&self, request_timeout: Duration) {
        let over_at = self.opened.elapsed() + request_timeout.saturating_sub(BEFORE_THE_END);
        self.over_at_ms.store(u64::try_from(over_at.as_millis()).unwrap_or(NEVER), Ordering::Relaxed);
    }

    fn at(&self) -> Option<Instant> {
        let over_at_ms = self.over_at_ms.load(Ordering::Relaxed);
        (over_at_ms != NEVER).then(|| self.opened + Duration::from_millis(over_at_ms))
    }
}

impl Default for AnswerDeadline {
    fn default() -> Self {
        Self::new()
    }
}

/// A stream whose writes fail once the peer has taken nothing for `at_most`, and once something waits to be taken when
/// its request's time is over.
#[derive(Debug)]
pub struct StallGuard<S> {
    stream: S,
    at_most: Duration,
    deadline: AnswerDeadline,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> StallGuard<S> {
    /// Guards a stream.
    pub fn new(stream: S, at_most: Duration, deadline: AnswerDeadline) -> Self {
        Self { stream, at_most, deadline, stalled: None }
    }

    /// Passes a write's outcome on; one that waits is timed.
    fn timed<T>(&mut self, wrote: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stalled = None;
            return wrote;
        }
        let (at_most, deadline) = (self.at_most, &self.deadline);
        let stalled = self.stalled.get_or_insert_with(|| {
            let stalled_at = Instant::now() + at_most;
            Box::pin(sleep_until(deadline.at().map_or(stalled_at, |over| over.min(stalled_at))))
        });
        match stalled.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                let message = "the peer reads nothing, or not fast enough for its request's time";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.timed(wrote, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.timed(wrote, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.timed(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    use super::*;

    const AT_MOST: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_is_given_up() {
        let (ours, _theirs) = duplex(16);
        let mut guarded = StallGuard::new(ours, AT_MOST, AnswerDeadline::new());
        let started = Instant::now();
        let error = guarded.write_all(&[0; 64]).await.expect_err("nobody reads");
        assert_eq!((error.kind(), started.elapsed()), (io::ErrorKind::TimedOut, AT_MOST));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_peer_is_waited_for() {
        let (ours, mut theirs) = duplex(16);
        let mut guarded = StallGuard::new(ours, AT_MOST, AnswerDeadline::new());
        let reader = async {
            let mut taken = [0; 16];
            for _ in 0..4 {
                tokio::time::sleep(AT_MOST - Duration::from_secs(1)).await;
                theirs.read_exact(&mut taken).await.expect("the writer goes on");
            }
        };
        let (wrote, ()) = tokio::join!(guarded.write_all(&[0; 64]), reader);
        wrote.expect("each piece was taken in time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_trickles_is_given_up_when_its_requests_time_is_over() {
        let (ours, mut theirs) = duplex(16);
        let deadline = AnswerDeadline::new();
        let mut guarded = StallGuard::new(ours, AT_MOST, deadline.clone());
        let (request_timeout, started) = (Duration::from_secs(100), Instant::now());
        deadline.begin(request_timeout);
        let reader = async {
            let mut taken = [0; 16];
            loop {
                tokio::time::sleep(AT_MOST / 2).await;
                theirs.read_exact(&mut taken).await.expect("the writer goes on");
            }
        };
        let error = tokio::select! {
            wrote = guarded.write_all(&[0; 64 * 1_024]) => wrote.expect_err("too slow"),
            () = reader => unreachable!("it reads for ever"),
        };
        assert_eq!(
            (error.kind(), started.elapsed()),
            (io::ErrorKind::TimedOut, request_timeout - BEFORE_THE_END)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_request_has_its_own_time() {
        let (ours, mut theirs) = duplex(16);
        let deadline = AnswerDeadline::new();
        let mut guarded = StallGuard::new(ours, AT_MOST, deadline.clone());
        for _ in 0..3 {
            deadline.begin(AT_MOST);
            let reader = async {
                tokio::time::sleep(AT_MOST / 2).await;
                theirs.read_exact(&mut [0; 32]).await.expect("an answer");
            };
            let (wrote, ()) = tokio::join!(guarded.write_all(&[0; 32]), reader);
            wrote.expect("in time");
        }
    }
}
