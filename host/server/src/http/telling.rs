//! A client's connection that tells of refusals: hyper's own get a body, and one that closes stays open to reading for
//! a moment, so that the client can read why.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::refusal::{CLIENT_ERROR, openai_shaped};

/// How long what a refused client still sends is read and thrown away. Closed at once, the system would answer it with
/// a reset, which takes the refusal away from a client that has not read it yet.
const LINGER: Duration = Duration::from_secs(2);

/// Read at a time while lingering, in bytes.
const DISCARD_BYTES: usize = 8 * 1024;

/// A connection's stream.
#[derive(Debug)]
pub struct Telling<S> {
    stream: S,
    /// hyper's refusal with its body, or what is left of it to write.
    told: Vec<u8>,
    refused: bool,
    closing: Closing,
}

#[derive(Debug)]
enum Closing {
    No,
    Lingering(Pin<Box<Sleep>>),
    Done,
}

impl<S> Telling<S> {
    /// Wraps a client's connection.
    pub fn new(stream: S) -> Self {
        Self { stream, told: Vec::new(), refused: false, closing: Closing::No }
    }

    /// Looks at what is to be written. Whether it was replaced.
    fn replaces(&mut self, bytes: &[u8]) -> bool {
        if !bytes.starts_with(b"HTTP/1.1 ") {
            return false;
        }
        self.refused = bytes.starts_with(CLIENT_ERROR);
        self.told = self.refused.then(|| openai_shaped(bytes)).flatten().unwrap_or_default();
        !self.told.is_empty()
    }
}

impl<S: AsyncWrite + Unpin> Telling<S> {
    /// Writes what is left of a refusal.
    fn poll_told(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.told.is_empty() {
            let wrote = ready!(Pin::new(&mut self.stream).poll_write(context, &self.told))?;
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.told.drain(..wrote);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Telling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Telling<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_told(context))?;
        if self.replaces(bytes) {
            // Taken as a whole; what the peer does not take at once goes out with the flush.
            let _ = self.poll_told(context)?;
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_told(context))?;
        if let Some(first) = slices.first()
            && self.replaces(first)
        {
            let _ = self.poll_told(context)?;
            return Poll::Ready(Ok(first.len()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_told(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_told(context))?;
        loop {
            let this = &mut *self;
            match &mut this.closing {
                Closing::No => {
                    ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
                    let linger = this.refused;
                    this.closing =
                        if linger { Closing::Lingering(Box::pin(sleep(LINGER))) } else { Closing::Done };
                }
                Closing::Lingering(over) => {
                    let mut scratch = [0; DISCARD_BYTES];
                    let mut scratch = ReadBuf::new(&mut scratch);
                    let read = Pin::new(&mut this.stream).poll_read(context, &mut scratch);
                    let goes_on = matches!(read, Poll::Ready(Ok(()))) && !scratch.filled().is_empty();
                    if over.as_mut().poll(context).is_ready() || (read.is_ready() && !goes_on) {
                        this.closing = Closing::Done;
                    } else if read.is_pending() {
                        return Poll::Pending;
                    }
                }
                Closing::Done => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    use super::*;

    const REFUSAL: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

    #[tokio::test(start_paused = true)]
    async fn a_refusal_arrives_whole_through_a_narrow_pipe() {
        let (ours, mut theirs) = duplex(16);
        let mut telling = Telling::new(ours);
        let writer = async {
            telling.write_all(REFUSAL).await.expect("taken");
            telling.shutdown().await.expect("closed");
        };
        let reader = async {
            let mut got = Vec::new();
            theirs.read_to_end(&mut got).await.expect("to its end");
            drop(theirs);
            got
        };
        let ((), got) = tokio::join!(writer, reader);
        assert_eq!(Some(got), openai_shaped(REFUSAL));
    }

    #[tokio::test(start_paused = true)]
    async fn other_writes_pass_unchanged() {
        let (ours, mut theirs) = duplex(1_024);
        let mut telling = Telling::new(ours);
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        telling.write_all(answer).await.expect("written");
        let started = Instant::now();
        telling.shutdown().await.expect("closed");
        assert_eq!(started.elapsed(), Duration::ZERO, "a good answer's close does not linger");
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).await.expect("to its end");
        assert_eq!(got, answer);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_client_may_go_on_sending_for_a_moment() {
        let (ours, mut theirs) = duplex(16);
        let mut telling = Telling::new(ours);
        telling.write_all(b"HTTP/1.1 413 ").await.expect("written");
        let started = Instant::now();
        let sender = async {
            // More than the pipe holds: written only if it is read at the other end.
            theirs.write_all(&[b'x'; 64 * 1_024]).await.expect("read and thrown away");
            theirs
        };
        let (closed, theirs) = tokio::join!(telling.shutdown(), sender);
        closed.expect("closed");
        assert_eq!(started.elapsed(), LINGER, "a client that stays is left after a while");
        drop(theirs);
    }
}
