//! The body type of every response, and reading a whole body within a bound.

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::Body;

use crate::pipeline::relay::Relay;

/// A response is either whole or relayed chunk by chunk.
pub type ResponseBody = Either<Full<Bytes>, Relay>;

/// A whole body.
pub fn whole(bytes: impl Into<Bytes>) -> ResponseBody {
    Either::Left(Full::new(bytes.into()))
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
    /// The peer went away or broke HTTP.
    #[error("the body broke off: {0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

/// Reads a body of at most `limit_bytes`.
pub async fn read<B>(body: B, limit_bytes: usize) -> Result<Bytes, ReadError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, limit_bytes).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ReadError::TooLong { limit_bytes }),
        Err(error) => Err(ReadError::Broken(error)),
    }
}
