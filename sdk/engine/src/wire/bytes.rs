//! Numbers, texts and lists, to and from bytes that may be anything.

use super::{MAX_BLOCKS, MAX_TEXT_BYTES};

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the message.
    #[error("the message ends early, at byte {0}")]
    Short(usize),
    /// The message ends before the bytes.
    #[error("{0} bytes too many behind the message")]
    Trailing(usize),
    /// A number that this version gives no meaning.
    #[error("{what} {code} is unknown: it was not agreed on")]
    Unknown {
        /// Of what.
        what: &'static str,
        /// Which.
        code: u8,
    },
    /// A list or text that is longer than its bound.
    #[error("{count} {what}, of at most {limit}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// The bound.
        limit: usize,
    },
    /// A text that is not UTF-8.
    #[error("a text that is not UTF-8")]
    NotText,
}

/// A message that its reader would refuse. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{count} {what} in one message, of at most {limit}")]
pub struct EncodeError {
    /// Of what.
    pub what: &'static str,
    /// How many.
    pub count: usize,
    /// The bound.
    pub limit: usize,
}

/// What is read from bytes and written as bytes, by one description of both.
pub(super) trait Wire: Sized {
    fn put(&self, out: &mut Writer);
    fn take(from: &mut Cursor<'_>) -> Result<Self, DecodeError>;
}

/// Bytes so far, and the first bound that they broke.
#[derive(Default)]
pub(super) struct Writer {
    pub bytes: Vec<u8>,
    pub broken: Option<EncodeError>,
}

impl Writer {
    pub(super) fn within(&mut self, what: &'static str, count: usize, limit: usize) -> bool {
        if count > limit {
            self.broken.get_or_insert(EncodeError { what, count, limit });
        }
        count <= limit
    }
}

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// That all was read.
    pub fn end(&self) -> Result<(), DecodeError> {
        if self.left() == 0 { Ok(()) } else { Err(DecodeError::Trailing(self.left())) }
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let found = self.bytes[self.at..].first_chunk::<N>().ok_or(DecodeError::Short(self.bytes.len()))?;
        self.at += N;
        Ok(*found)
    }

    pub(super) fn slice(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let found = self.bytes[self.at..].get(..len).ok_or(DecodeError::Short(self.bytes.len()))?;
        self.at += len;
        Ok(found)
    }
}

macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl Wire for $number {
            fn put(&self, out: &mut Writer) {
                out.bytes.extend(self.to_le_bytes());
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, DecodeError> {
                from.number().map(Self::from_le_bytes)
            }
        }
    )* };
}
numbers!(u8, u16, u32, u64, u128);

impl Wire for bool {
    fn put(&self, out: &mut Writer) {
        u8::from(*self).put(out);
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            code => Err(DecodeError::Unknown { what: "flag", code }),
        }
    }
}

impl Wire for String {
    fn put(&self, out: &mut Writer) {
        if out.within("bytes of text", self.len(), MAX_TEXT_BYTES) {
            (self.len() as u16).put(out);
            out.bytes.extend(self.as_bytes());
        }
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let count = usize::from(u16::take(from)?);
        if count > MAX_TEXT_BYTES {
            return Err(DecodeError::TooMany { what: "bytes of text", count, limit: MAX_TEXT_BYTES });
        }
        let bytes = from.slice(count)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| DecodeError::NotText)
    }
}

impl Wire for Vec<super::BlockRef> {
    fn put(&self, out: &mut Writer) {
        if out.within("blocks", self.len(), MAX_BLOCKS) {
            (self.len() as u32).put(out);
            self.iter().for_each(|block| block.put(out));
        }
    }

    /// Nothing is allocated for items that the bytes cannot hold.
    fn take(from: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        const BLOCK_BYTES: usize = 4 + 8;
        let count = u32::take(from)? as usize;
        if count > MAX_BLOCKS {
            return Err(DecodeError::TooMany { what: "blocks", count, limit: MAX_BLOCKS });
        }
        if count * BLOCK_BYTES > from.left() {
            return Err(DecodeError::Short(from.bytes.len()));
        }
        (0..count).map(|_| super::BlockRef::take(from)).collect()
    }
}

/// A struct whose members follow each other; a tuple of one member is named `0`.
macro_rules! members {
    ($name:ident { $($member:tt),* }) => {
        impl $crate::wire::bytes::Wire for $name {
            fn put(&self, out: &mut $crate::wire::bytes::Writer) {
                $($crate::wire::bytes::Wire::put(&self.$member, out);)*
            }
            fn take(
                from: &mut $crate::wire::bytes::Cursor<'_>,
            ) -> Result<Self, $crate::wire::bytes::DecodeError> {
                Ok(Self { $($member: $crate::wire::bytes::Wire::take(from)?),* })
            }
        }
    };
}

/// A choice, by its codes: one for each variant, or for each choice in it. They are the wire's: none ever gets another meaning.
macro_rules! codes {
    ($name:ident, $what:literal: $($code:literal => $($variant:ident)::+ $(($($member:ident)::+))?),* $(,)?) => {
        impl $crate::wire::bytes::Wire for $name {
            fn put(&self, out: &mut $crate::wire::bytes::Writer) {
                out.bytes.push(match self { $($($variant)::+ $(($($member)::+))? => $code),* });
            }
            fn take(
                from: &mut $crate::wire::bytes::Cursor<'_>,
            ) -> Result<Self, $crate::wire::bytes::DecodeError> {
                match <u8 as $crate::wire::bytes::Wire>::take(from)? {
                    $($code => Ok($($variant)::+ $(($($member)::+))?),)*
                    code => Err($crate::wire::bytes::DecodeError::Unknown { what: $what, code }),
                }
            }
        }
    };
}

/// Kinds of messages with their members, by their numbers.
macro_rules! kinds {
    ($name:ident, $what:literal: $($kind:literal => $variant:ident { $($member:ident),* }),* $(,)?) => {
        impl $crate::wire::Message for $name {
            fn kind(&self) -> u8 {
                match self { $(Self::$variant { .. } => $kind),* }
            }
        }
        impl $crate::wire::frame::Members for $name {
            fn put_members(&self, out: &mut $crate::wire::bytes::Writer) {
                match self {
                    $(Self::$variant { $($member),* } => { $($crate::wire::bytes::Wire::put($member, out);)* })*
                }
            }
            fn take_members(
                kind: u8,
                from: &mut $crate::wire::bytes::Cursor<'_>,
            ) -> Result<Self, $crate::wire::bytes::DecodeError> {
                Ok(match kind {
                    $($kind => Self::$variant { $($member: $crate::wire::bytes::Wire::take(from)?),* },)*
                    code => return Err($crate::wire::bytes::DecodeError::Unknown { what: $what, code }),
                })
            }
        }
    };
}

pub(super) use {codes, kinds, members};
