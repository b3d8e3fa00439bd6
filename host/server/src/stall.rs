//! A connection that gives up on a peer that stopped reading.
//!
//! hyper asks a body for more only once its own buffer is written, so a body's own deadline never fires while a
//! client reads nothing; without this such a client would hold its request, its load and the engine's sequence.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail once the peer has taken nothing for `at_most`.
#[derive(Debug)]
pub struct StallGuard<S> {
    stream: S,
    at_most: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> StallGuard<S> {
    /// Guards a stream.
    pub fn new(stream: S, at_most: Duration) -> Self {
        Self { stream, at_most, stalled: None }
    }

    /// Passes a write's outcome on; one that waits is timed.
    fn timed<T>(&mut self, wrote: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stalled = None;
            return wrote;
        }
        let at_most = self.at_most;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(at_most)));
        match stalled.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")))
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
        let mut guarded = StallGuard::new(ours, AT_MOST);
        let started = Instant::now();
        let error = guarded.write_all(&[0; 64]).await.expect_err("nobody reads");
        assert_eq!((error.kind(), started.elapsed()), (io::ErrorKind::TimedOut, AT_MOST));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_peer_is_waited_for() {
        let (ours, mut theirs) = duplex(16);
        let mut guarded = StallGuard::new(ours, AT_MOST);
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
}
