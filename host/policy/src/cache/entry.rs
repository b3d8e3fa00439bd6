//! One compiled policy as it lies in the cache: a header that says what it is, and the code.
//!
//! The header's digest covers the entry's name too, and the name says which file was compiled by what. So an entry
//! that was cut short, changed by a failing disk, or renamed does not pass.

use sha2::{Digest, Sha256};

use crate::trusted_code::TrustedCode;

/// Begins each entry; the digit is the format's version.
const MAGIC: &[u8; 8] = b"sluicec1";
const DIGEST_BYTES: usize = 32;
/// Before the code.
pub(super) const HEADER_BYTES: usize = MAGIC.len() + DIGEST_BYTES;

/// What an entry of this name and code begins with.
pub(super) fn header(name: &str, code: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let (magic, digest) = header.split_at_mut(MAGIC.len());
    magic.copy_from_slice(MAGIC);
    digest.copy_from_slice(&digest_of(name, code));
    header
}

/// The code of an entry; `None` unless it is whole and belongs to this name.
pub(super) fn open<'a>(name: &str, entry: &'a [u8]) -> Option<TrustedCode<'a>> {
    let (header, code) = entry.split_at_checked(HEADER_BYTES)?;
    (header == self::header(name, code)).then(|| TrustedCode::vouched_for(code))
}

fn digest_of(name: &str, code: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut digest = Sha256::new();
    // The length first: no name and code together look like another pair.
    digest.update((name.len() as u64).to_le_bytes());
    digest.update(name);
    digest.update(code);
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, code: &[u8]) -> Vec<u8> {
        [&header(name, code)[..], code].concat()
    }

    #[test]
    fn what_was_stored_comes_back_under_its_name_only() {
        let stored = entry("a", b"code");
        assert_eq!(open("a", &stored).map(TrustedCode::bytes), Some(&b"code"[..]));
        assert_eq!(open("b", &stored), None);
        assert_eq!(open("ac", &entry("a", b"code")), None);
        assert_eq!(open("a", &entry("a", b"")).map(TrustedCode::bytes), Some(&b""[..]));
    }

    #[test]
    fn no_changed_bit_and_no_missing_byte_passes() {
        let stored = entry("a", b"code");
        for bit in 0..stored.len() * 8 {
            let mut spoilt = stored.clone();
            spoilt[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open("a", &spoilt), None, "bit {bit}");
        }
        for length in 0..stored.len() {
            assert_eq!(open("a", &stored[..length]), None, "{length} bytes");
        }
        assert_eq!(open("a", &[&stored[..], b"x"].concat()), None);
    }
}
