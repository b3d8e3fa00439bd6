//! Sixteen bytes of SHA-256.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Names a text. 16 bytes of SHA-256, so that no client can make two histories that share one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 16]);

impl Digest {
    /// Reads what its `Debug` writes: 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let is_one = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_one)?;
        Some(Self(number.to_be_bytes()))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A digest in the making.
#[derive(Default)]
pub(super) struct Hasher(Sha256);

impl Hasher {
    /// Of texts of one kind: the same bytes have other digests elsewhere.
    pub fn of(kind: u8) -> Self {
        let mut hasher = Self::default();
        hasher.bytes(&[kind]);
        hasher
    }

    /// Bytes whose end the caller makes known.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Bytes with their length, so that two of them cannot be shared out differently.
    pub fn counted(&mut self, bytes: &[u8]) {
        self.bytes(&(bytes.len() as u64).to_le_bytes());
        self.bytes(bytes);
    }

    pub fn digest(self) -> Digest {
        let mut digest = Digest([0; 16]);
        digest.0.copy_from_slice(&self.0.finalize()[..16]);
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read() {
        let digest = Hasher::of(b'x').digest();
        assert_eq!(Digest::parse(&format!("{digest:?}")), Some(digest));
        for other in ["", "00", "+0000000000000000000000000000000", "0g000000000000000000000000000000"] {
            assert_eq!(Digest::parse(other), None, "{other}");
        }
    }
}
