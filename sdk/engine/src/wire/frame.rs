//! Frames: what is cut out of a stream of bytes, and put into it.

use super::MAX_FRAME_BYTES;
use super::bytes::{Cursor, DecodeError, EncodeError, Wire, Writer};

/// Bytes of the count before each frame.
const COUNT_BYTES: usize = 4;

const PING: u8 = 1;
const PONG: u8 = 2;
const GOODBYE: u8 = 3;

/// What the sides of a link say to each other: the link's own frames, and messages above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<M> {
    /// Are you there? To be answered by a pong with the same number.
    Ping(u64),
    /// The answer.
    Pong(u64),
    /// The last frame of a side, and why it goes.
    Goodbye(String),
    /// For who uses the link.
    Message(M),
}

/// What only this crate may add to: which messages there are is the protocol's.
pub(super) trait Members: Sized {
    fn put_members(&self, out: &mut Writer);
    fn take_members(kind: u8, from: &mut Cursor<'_>) -> Result<Self, DecodeError>;
}

/// A message of one direction: [`super::ToHost`] or [`super::ToEngine`].
#[expect(private_bounds, reason = "sealed: the kinds of messages are the protocol's")]
pub trait Message: Members {
    /// Its number on the wire.
    fn kind(&self) -> u8;
}

/// Bytes that are no frames. Nothing after them can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than any frame, or without a kind.
    #[error("a frame of {0} bytes: must be 1 to {MAX_FRAME_BYTES}")]
    Size(usize),
    /// No message of this version.
    #[error("a frame of kind {kind}: {cause}")]
    Content {
        /// Its kind.
        kind: u8,
        /// What is wrong with it.
        cause: DecodeError,
    },
}

/// A frame as bytes, its count included.
///
/// # Errors
/// If the reader would refuse it.
pub fn encode<M: Message>(frame: &Frame<M>) -> Result<Vec<u8>, EncodeError> {
    let kind = match frame {
        Frame::Ping(_) => PING,
        Frame::Pong(_) => PONG,
        Frame::Goodbye(_) => GOODBYE,
        Frame::Message(message) => message.kind(),
    };
    framed(kind, |out| match frame {
        Frame::Ping(number) | Frame::Pong(number) => number.put(out),
        Frame::Goodbye(why) => why.put(out),
        Frame::Message(message) => message.put_members(out),
    })
}

pub(super) fn framed(kind: u8, put: impl FnOnce(&mut Writer)) -> Result<Vec<u8>, EncodeError> {
    let mut out = Writer::default();
    out.bytes.extend([0; COUNT_BYTES]);
    kind.put(&mut out);
    put(&mut out);
    if let Some(broken) = out.broken {
        return Err(broken);
    }
    let count = out.bytes.len() - COUNT_BYTES;
    if count > MAX_FRAME_BYTES {
        return Err(EncodeError { what: "bytes", count, limit: MAX_FRAME_BYTES });
    }
    out.bytes[..COUNT_BYTES].copy_from_slice(&(count as u32).to_le_bytes());
    Ok(out.bytes)
}

fn decode<M: Message>(content: &[u8]) -> Result<Frame<M>, FrameError> {
    let [kind, members @ ..] = content else { return Err(FrameError::Size(0)) };
    let mut from = Cursor::new(members);
    let mut read = || {
        let frame = match *kind {
            PING => Frame::Ping(Wire::take(&mut from)?),
            PONG => Frame::Pong(Wire::take(&mut from)?),
            GOODBYE => Frame::Goodbye(Wire::take(&mut from)?),
            kind => Frame::Message(M::take_members(kind, &mut from)?),
        };
        from.end().map(|()| frame)
    };
    read().map_err(|cause| FrameError::Content { kind: *kind, cause })
}

/// Bytes as they came, until they are frames. Holds at most one frame that is not whole, and what came with it.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Bytes of it that were taken already.
    taken: usize,
}

impl FrameBuffer {
    /// Adds bytes that came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame, if all of it came.
    ///
    /// # Errors
    /// If what came is none.
    pub fn next_frame<M: Message>(&mut self) -> Result<Option<Frame<M>>, FrameError> {
        let rest = &self.bytes[self.taken..];
        let Some((count, rest)) = rest.split_first_chunk::<COUNT_BYTES>() else { return Ok(None) };
        let count = u32::from_le_bytes(*count) as usize;
        // Said as soon as the count is there: nobody waits for so many bytes.
        if !(1..=MAX_FRAME_BYTES).contains(&count) {
            return Err(FrameError::Size(count));
        }
        let Some(content) = rest.get(..count) else { return Ok(None) };
        let frame = decode(content)?;
        self.taken += COUNT_BYTES + count;
        Ok(Some(frame))
    }

    /// Bytes that are held.
    pub fn held_bytes(&self) -> usize {
        self.bytes.len() - self.taken
    }
}
