//! The first bytes of a connection.

use super::super::names::{EngineId, Peer};
use super::cursor::Cursor;

/// The version of the messages that this build speaks.
pub const VERSION: u16 = 1;

/// What every hello begins with.
const MAGIC: [u8; 8] = *b"sluiceKV";

/// Bytes of a hello, in every version.
pub const HELLO_BYTES: usize = 8 + 2 + 2 + 16 + 8;

/// Who speaks, and which versions it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The engine and the life of its process.
    pub peer: Peer,
    /// The oldest version that it speaks.
    pub oldest: u16,
    /// The newest version that it speaks.
    pub newest: u16,
}

/// A connection that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// It is something else that speaks there.
    #[error("no transfer hello: something else listens or connects there")]
    NotOurs,
    /// No version is common to both.
    #[error(
        "the peer speaks versions {theirs_oldest} to {theirs_newest}, we {ours_oldest} to {ours_newest}: update the older side"
    )]
    NoCommonVersion {
        /// The peer's oldest.
        theirs_oldest: u16,
        /// The peer's newest.
        theirs_newest: u16,
        /// Our oldest.
        ours_oldest: u16,
        /// Our newest.
        ours_newest: u16,
    },
}

impl Hello {
    /// The hello of this build.
    #[must_use]
    pub fn new(peer: Peer) -> Self {
        Self { peer, oldest: VERSION, newest: VERSION }
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HELLO_BYTES);
        out.extend(MAGIC);
        out.extend(self.oldest.to_le_bytes());
        out.extend(self.newest.to_le_bytes());
        out.extend(self.peer.engine.0.to_le_bytes());
        out.extend(self.peer.incarnation.to_le_bytes());
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// If it is no hello.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, HelloError> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(HelloError::NotOurs)?;
        let mut from = Cursor::new(rest);
        let mut read = || {
            let (oldest, newest) = (from.u16()?, from.u16()?);
            let peer = Peer { engine: EngineId(from.u128()?), incarnation: from.u64()? };
            Ok::<_, super::DecodeError>(Self { peer, oldest, newest })
        };
        read().ok().filter(|hello| hello.oldest <= hello.newest).ok_or(HelloError::NotOurs)
    }

    /// The newest version that both speak.
    ///
    /// # Errors
    /// If there is none.
    pub fn agree(&self, theirs: &Self) -> Result<u16, HelloError> {
        let newest = self.newest.min(theirs.newest);
        if newest >= self.oldest.max(theirs.oldest) {
            return Ok(newest);
        }
        Err(HelloError::NoCommonVersion {
            theirs_oldest: theirs.oldest,
            theirs_newest: theirs.newest,
            ours_oldest: self.oldest,
            ours_newest: self.newest,
        })
    }
}
