//! The body type of every response, and reading a whole body within a bound.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body, Frame, SizeHint};

use crate::admission::Place;
use crate::passthrough::stream::Passing;
use crate::pipeline::relay::Relay;

/// A response is either whole or relayed chunk by chunk: a passed request's, or one that was decided.
pub type ResponseBody = Either<Either<Whole, Passing>, Relay>;

/// A whole body, and the place among the requests in flight that it takes until it is sent.
#[derive(Debug)]
pub struct Whole {
    bytes: Full<Bytes>,
    _place: Option<Place>,
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.bytes).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.bytes.size_hint()
    }
}

/// A whole body.
pub fn whole(bytes: impl Into<Bytes>) -> ResponseBody {
    whole_with_place(bytes, None)
}

/// A whole body that keeps a place until it is sent.
pub fn whole_with_place(bytes: impl Into<Bytes>, place: Option<Place>) -> ResponseBody {
    Either::Left(Either::Left(Whole { bytes: Full::new(bytes.into()), _place: place }))
}

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Longer than allowed.
    #[error("the body is longer than {limit_bytes} bytes")]
    TooLong {
        /// The bound.
        limit_bytes: usize,
    },
    /// This host holds as many large bodies as it may.
    #[error("this host has no room for another large body")]
    NoRoom,
    /// The peer went away or broke HTTP.
    #[error("the body broke off: {0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

/// Whether a body broke off because its sender is gone, not because it broke HTTP.
pub fn peer_left(error: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| matches!(error.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe))
}

/// Reads a body of at most `limit_bytes`.
pub async fn read<B>(body: B, limit_bytes: usize) -> Result<Bytes, ReadError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // A length that is said is believed: nothing is read of a body that is too long.
    if body.size_hint().lower() > limit_bytes as u64 {
        return Err(ReadError::TooLong { limit_bytes });
    }
    match Limited::new(body, limit_bytes).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ReadError::TooLong { limit_bytes }),
        Err(error) => Err(ReadError::Broken(error)),
    }
}
