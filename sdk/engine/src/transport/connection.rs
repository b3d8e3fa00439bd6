//! One connection: a thread that reads, a thread that writes, and whoever sends.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use super::clock::Clock;
use super::liveness::{Due, Liveness};
use super::outbound::{Outbound, PushError};
use super::socket::{Until, send_all, send_some, wait_readable};
use super::{MAX_QUEUED_FRAMES, sentence};
use crate::wire::{EncodeError, Frame, FrameBuffer, FrameError, Message, encode};

/// Bytes that one read call is offered.
const READ_BYTES: usize = 64 << 10;

/// How long a goodbye may take to be written, in milliseconds: who leaves does not wait for who does not read.
pub const LEAVE_MS: u64 = 1_000;

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkEnd {
    /// The other side said goodbye.
    #[error("the other side left: {0}")]
    Left(String),
    /// The other side's process is gone, or closed the socket.
    #[error("the other side closed the socket without a goodbye")]
    Closed,
    /// It sent no whole frame for so long.
    #[error("nothing was heard for {silence_ms} ms")]
    Silent {
        /// For so long.
        silence_ms: u64,
    },
    /// It did not read what was sent.
    #[error("the other side does not read: {frames} frames (of at most {MAX_QUEUED_FRAMES}) wait for it")]
    NotReading {
        /// That wait.
        frames: usize,
    },
    /// It sent what is no frame.
    #[error("the other side broke the protocol: {0}")]
    Broken(#[from] FrameError),
    /// It sent a frame that says what cannot be.
    #[error("the other side said what cannot be: {0}")]
    Wrong(String),
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(io::ErrorKind),
    /// This side ended it.
    #[error("ended here: {0}")]
    Ended(String),
}

/// What both sides keep to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// A ping is sent after so long a silence, in milliseconds.
    pub ping_ms: u64,
    /// The other side is dead after so long a silence, in milliseconds, and when it took no byte for so long.
    pub silence_ms: u64,
}

/// A socket that is past its handshake.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    outbound: Outbound,
    end: OnceLock<LinkEnd>,
    pace: Pace,
    clock: Arc<dyn Clock>,
}

impl Connection {
    /// Takes a socket over.
    #[must_use]
    pub fn new(socket: UnixStream, pace: Pace, clock: Arc<dyn Clock>) -> Self {
        let (outbound, end) = (Outbound::default(), OnceLock::new());
        Self { socket, outbound, end, pace, clock }
    }

    /// Sends a message at once where nothing waits to be written, or else queues it, after up to `wait` for room.
    ///
    /// # Errors
    /// If there is no room, the connection is over, or the message breaks a bound.
    pub fn send<M: Message>(&self, message: M, wait: Duration) -> Result<(), SendFailure> {
        let frame = encode(&Frame::Message(message))?;
        if self.outbound.begin_writing() {
            // An error is the writer's to find: it says why the connection ends.
            let sent = send_some(&self.socket, &frame).unwrap_or(0);
            self.outbound.end_writing(&frame[sent..]);
            return Ok(());
        }
        Ok(self.outbound.push(frame, wait)?)
    }

    /// Ends it at once; what waits is not sent. The first reason given is the one that stands.
    pub fn end(&self, why: LinkEnd) {
        let _ = self.end.set(why);
        self.outbound.close();
        // The reader and the writer wake up by this. It fails where the other side is gone, which is as good.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Says goodbye behind all that waits. The writer ends the connection after it; [`Connection::end`] it when that
    /// takes longer than [`LEAVE_MS`].
    pub fn leave<M: Message>(&self, why: &str) {
        let _ = self.end.set(LinkEnd::Ended(why.to_owned()));
        if let Ok(frame) = encode(&Frame::<M>::Goodbye(sentence(why))) {
            // Without room the other side is told by the end alone.
            let _ = self.outbound.push(frame, Duration::ZERO);
        }
        self.outbound.close();
    }

    /// Whether the other side's socket is closed already, whatever was read.
    #[must_use]
    pub fn is_hung_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut sockets = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let asked = poll(&mut sockets, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        asked.is_ok_and(|ready| ready > 0) || self.end.get().is_some()
    }

    /// Why it ended, if it did.
    #[must_use]
    pub fn ended(&self) -> Option<&LinkEnd> {
        self.end.get()
    }

    /// Frames that wait to be written.
    #[must_use]
    pub fn queued_frames(&self) -> usize {
        self.outbound.queued_frames()
    }

    /// Writes what is queued until the connection ends. For a thread of its own.
    pub fn write_out(&self) {
        let mut batch = Vec::new();
        while self.outbound.pop(&mut batch) {
            let until = Until::after(self.clock.as_ref(), self.pace.silence_ms);
            let sent = send_all(&self.socket, &batch, until);
            self.outbound.end_writing(&[]);
            if let Err(error) = sent {
                return self.end(match error.kind() {
                    io::ErrorKind::TimedOut => LinkEnd::NotReading { frames: self.outbound.queued_frames() },
                    // The reader finds what the other side said last, and that it has gone.
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                        return self.outbound.close();
                    }
                    kind => LinkEnd::Socket(kind),
                });
            }
        }
        // What was written can still be read; our reader wakes up.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Reads until the connection ends, and hands each message to `take`, which may end it. Says why it ended. For a
    /// thread of its own.
    pub fn read_in<M: Message>(&self, mut take: impl FnMut(M) -> Result<(), LinkEnd>) -> LinkEnd {
        let why = match self.read(&mut take) {
            Ok(why) | Err(why) => why,
        };
        if let LinkEnd::Broken(_) | LinkEnd::Wrong(_) | LinkEnd::Silent { .. } = why {
            self.tell::<M>(&why);
        }
        self.end(why.clone());
        self.end.get().cloned().unwrap_or(why)
    }

    fn read<M: Message>(&self, take: &mut impl FnMut(M) -> Result<(), LinkEnd>) -> Result<LinkEnd, LinkEnd> {
        let mut frames = FrameBuffer::default();
        let mut chunk = vec![0; READ_BYTES];
        let mut live = Liveness::new(self.pace.ping_ms, self.pace.silence_ms, self.clock.now_ms());
        let mut pings = 0;
        loop {
            while let Some(frame) = frames.next_frame::<M>()? {
                live.heard(self.clock.now_ms());
                match frame {
                    Frame::Message(message) => {
                        take(message)?;
                        // `take` may have waited for room: that was no silence of the other side.
                        live.heard(self.clock.now_ms());
                    }
                    Frame::Ping(number) => {
                        encode(&Frame::<M>::Pong(number))
                            .into_iter()
                            .for_each(|frame| self.outbound.pong(frame));
                    }
                    Frame::Pong(_) => {}
                    Frame::Goodbye(why) => return Ok(LinkEnd::Left(why)),
                }
            }
            match live.due(self.clock.now_ms()) {
                Due::Dead => return Err(LinkEnd::Silent { silence_ms: live.silence_ms() }),
                Due::Ping => {
                    pings += 1;
                    encode(&Frame::<M>::Ping(pings)).into_iter().for_each(|frame| self.outbound.ping(frame));
                }
                Due::Wait(ms) => {
                    if wait_readable(&self.socket, ms).map_err(|error| LinkEnd::Socket(error.kind()))? {
                        match recv(&self.socket, chunk.as_mut_slice(), RecvFlags::DONTWAIT) {
                            Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(LinkEnd::Closed),
                            Ok((count, _)) => frames.push(&chunk[..count]),
                            Err(Errno::AGAIN | Errno::INTR) => {}
                            Err(error) => return Err(LinkEnd::Socket(io::Error::from(error).kind())),
                        }
                    }
                }
            }
        }
    }

    /// Tells the other side what it did wrong, if it takes that at once.
    fn tell<M: Message>(&self, why: &LinkEnd) {
        // Within another frame it would not be understood.
        if !self.outbound.begin_writing() {
            return;
        }
        if let Ok(frame) = encode(&Frame::<M>::Goodbye(sentence(&why.to_string()))) {
            let _ = send_all(&self.socket, &frame, Until::after(self.clock.as_ref(), 0));
        }
        self.outbound.end_writing(&[]);
    }
}

/// Why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendFailure {
    /// It breaks a bound.
    #[error(transparent)]
    Bound(#[from] EncodeError),
    /// It was not queued.
    #[error(transparent)]
    Queue(#[from] PushError),
}
