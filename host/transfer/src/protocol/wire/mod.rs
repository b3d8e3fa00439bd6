//! Messages as bytes.
//!
//! Little-endian, a tag before each variant, a count before each list; no padding, nothing optional. The transport
//! frames messages; a frame is at most [`MAX_MESSAGE_BYTES`]. A connection begins with a [`Hello`] from each side,
//! which is of one form for ever; what follows is of the version that both agreed on.

mod cursor;
mod hello;
mod reading;
mod writing;

pub use hello::{HELLO_BYTES, Hello, HelloError, VERSION};

use super::limits::MAX_MESSAGE_BYTES;
use super::message::Message;

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame is longer than any message.
    #[error("a message of {0} bytes, of at most {MAX_MESSAGE_BYTES}")]
    TooLong(usize),
    /// The bytes end before the message.
    #[error("the message ends early, at byte {0}")]
    Short(usize),
    /// The message ends before the bytes.
    #[error("{0} bytes too many behind the message")]
    Trailing(usize),
    /// A variant that this version does not have.
    #[error("{what} {tag} is unknown")]
    Unknown {
        /// Of what.
        what: &'static str,
        /// Which.
        tag: u8,
    },
    /// A list that is longer than its bound.
    #[error("{count} {what}, of at most {limit}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: u32,
        /// The bound.
        limit: usize,
    },
}

/// Appends `message` to `out`, without a frame.
pub fn encode(message: &Message, out: &mut Vec<u8>) {
    writing::message(message, out);
}

/// Reads the one message that `bytes` are.
///
/// # Errors
/// If they are not exactly one message of this version.
pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let mut cursor = cursor::Cursor::new(bytes);
    let message = reading::message(&mut cursor)?;
    match cursor.left() {
        0 => Ok(message),
        left => Err(DecodeError::Trailing(left)),
    }
}

#[cfg(test)]
mod tests;
