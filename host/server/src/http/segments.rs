//! A request body in pieces: most of it are slices of what the client sent, shared by all legs and attempts.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// The pieces. Cloning copies none of their bytes.
#[derive(Debug, Clone, Default)]
pub struct Segments {
    parts: VecDeque<Bytes>,
    /// Of all parts.
    bytes: u64,
    taken: Option<Taken>,
}

/// Whether the first byte of a body, or of a clone of it, was taken for sending.
#[derive(Debug, Clone, Default)]
pub struct Taken(Arc<AtomicBool>);

impl Taken {
    /// Whether it was. A connection may have had it since.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Segments {
    /// Adds a piece at the end.
    pub fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.bytes += part.len() as u64;
            self.parts.push_back(part);
        }
    }

    /// The same; the mark is set once its first byte is taken.
    pub fn marked(self, taken: Taken) -> Self {
        Self { taken: Some(taken), ..self }
    }

    /// Whether there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The pieces, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.parts.iter()
    }

    /// All of it in one piece; for tests and for small bodies.
    pub fn joined(&self) -> Vec<u8> {
        self.parts.iter().flatten().copied().collect()
    }
}

impl<B: Into<Bytes>> From<B> for Segments {
    fn from(bytes: B) -> Self {
        let mut segments = Self::default();
        segments.push(bytes.into());
        segments
    }
}

impl Body for Segments {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(taken) = &self.taken {
            taken.0.store(true, Ordering::Release);
        }
        let part = self.parts.pop_front();
        self.bytes -= part.as_ref().map_or(0, |part| part.len() as u64);
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}
