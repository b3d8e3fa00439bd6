//! API keys as the host knows them: by digest only.

use std::fmt;
use std::hint::black_box;

use hyper::header::{AUTHORIZATION, HeaderMap};
use sha2::{Digest, Sha256};

/// The longest key looked at, in bytes; any in use is far shorter.
pub const KEY_BYTES_AT_MOST: usize = 4_096;

/// SHA-256 of an API key. Keys are long and random, so that a plain digest gives none away.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// The digest of a key.
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// Reads 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
        }
        Some(Self(bytes))
    }

    /// Whether two are the same, in a time that does not tell where they differ.
    pub fn same(&self, other: &Self) -> bool {
        let lane = |bytes: &[u8]| bytes.iter().fold(0_u64, |lane, byte| lane << 8 | u64::from(*byte));
        let lanes = self.0.chunks_exact(8).zip(other.0.chunks_exact(8));
        black_box(lanes.fold(0, |differ, (one, other)| differ | (lane(one) ^ lane(other)))) == 0
    }
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "KeyDigest({self})")
    }
}

/// All keys, each with what it stands for.
#[derive(Debug, Clone, Default)]
pub struct KeyRing(Vec<(KeyDigest, usize)>);

impl KeyRing {
    /// These keys, each with its tenant's number.
    pub fn new(keys: impl IntoIterator<Item = (KeyDigest, usize)>) -> Self {
        Self(keys.into_iter().collect())
    }

    /// The tenant of a key. Every key is compared to its end: the time tells neither which one it was nor how near a
    /// wrong one came.
    pub fn owner(&self, key: &[u8]) -> Option<usize> {
        let asked = KeyDigest::of(key);
        let mut found = None;
        for (digest, owner) in &self.0 {
            if digest.same(&asked) {
                found = Some(*owner);
            }
        }
        found
    }
}

/// Where clients of some APIs send their key, bare.
pub const KEY_HEADER: &str = "x-api-key";

/// What a request shows for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presented<'a> {
    /// Neither header.
    Nothing,
    /// No `Bearer KEY`, too long, or there twice.
    Unreadable,
    /// A key.
    Key(&'a [u8]),
}

/// The key of `Authorization: Bearer KEY`, or where that is missing of `x-api-key: KEY`.
pub fn presented(headers: &HeaderMap) -> Presented<'_> {
    match headers.contains_key(AUTHORIZATION) {
        true => bearer(headers),
        false => key_in(headers, KEY_HEADER, false),
    }
}

/// The token of `Authorization: Bearer TOKEN`.
pub fn bearer(headers: &HeaderMap) -> Presented<'_> {
    key_in(headers, AUTHORIZATION.as_str(), true)
}

fn key_in<'a>(headers: &'a HeaderMap, name: &str, is_bearer: bool) -> Presented<'a> {
    let mut values = headers.get_all(name).iter();
    let (value, more) = (values.next(), values.next());
    let Some(value) = value.map(|value| value.as_bytes()) else { return Presented::Nothing };
    let is_scheme = |scheme: &[u8]| scheme.eq_ignore_ascii_case(b"bearer ");
    let key = match is_bearer {
        true => value.split_at_checked(7).filter(|(scheme, _)| is_scheme(scheme)).map(|(_, key)| key),
        false => Some(value),
    };
    let fits = |key: &&[u8]| (1..=KEY_BYTES_AT_MOST).contains(&key.len()) && more.is_none();
    key.map(<[u8]>::trim_ascii).filter(fits).map_or(Presented::Unreadable, Presented::Key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of "abc", from FIPS 180-2.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn digests_are_read_and_written_in_hexadecimal() {
        assert_eq!(KeyDigest::of(b"abc").to_string(), ABC);
        assert_eq!(KeyDigest::parse(ABC), Some(KeyDigest::of(b"abc")));
        assert_eq!(KeyDigest::parse(&ABC.to_uppercase()), Some(KeyDigest::of(b"abc")));
        for bad in ["", "abc", &ABC[1..], &format!("{ABC}0"), &ABC.replace('b', "g"), &"é".repeat(32)] {
            assert_eq!(KeyDigest::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_key_finds_its_owner() {
        let ring = KeyRing::new([
            (KeyDigest::of(b"one"), 0),
            (KeyDigest::of(b"two"), 1),
            (KeyDigest::of(b"more"), 1),
        ]);
        for (key, owner) in
            [("one", Some(0)), ("two", Some(1)), ("more", Some(1)), ("", None), ("One", None), ("one ", None)]
        {
            assert_eq!(ring.owner(key.as_bytes()), owner, "{key:?}");
        }
    }

    #[test]
    fn keys_are_presented_as_bearers_or_bare() {
        use Presented::{Key, Nothing, Unreadable};
        let (auth, bare) = ("authorization", KEY_HEADER);
        for (sent, expected) in [
            (&[][..], Nothing),
            (&[(auth, "Bearer sk-1")][..], Key(b"sk-1")),
            (&[(auth, "bearer   sk-1 ")], Key(b"sk-1")),
            (&[(auth, "Basic sk-1")], Unreadable),
            (&[(auth, "Bearer")], Unreadable),
            (&[(auth, "Bearer ")], Unreadable),
            (&[(auth, "sk-1")], Unreadable),
            (&[(auth, "Bearer sk-1"), (auth, "Bearer sk-2")], Unreadable),
            (&[(bare, "sk-1")], Key(b"sk-1")),
            (&[(bare, "sk-1"), (bare, "sk-2")], Unreadable),
            (&[(bare, "")], Unreadable),
            (&[(bare, "sk-1"), (auth, "Bearer sk-2")], Key(b"sk-2")),
            (&[(bare, "sk-1"), (auth, "sk-2")], Unreadable),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in sent {
                headers.append(*name, value.parse().expect("a value"));
            }
            assert_eq!(presented(&headers), expected, "{sent:?}");
        }
    }
}
