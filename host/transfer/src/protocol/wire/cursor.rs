//! Reading numbers and lists from bytes that may be anything.

use super::DecodeError;

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let found = self.bytes[self.at..].first_chunk::<N>().ok_or(DecodeError::Short(self.bytes.len()))?;
        self.at += N;
        Ok(*found)
    }

    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Result<u128, DecodeError> {
        self.take().map(u128::from_le_bytes)
    }

    /// A list of at most `limit` items. Nothing is allocated for items that the bytes cannot hold.
    pub(super) fn list<T>(
        &mut self,
        what: &'static str,
        limit: usize,
        item_bytes: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.u32()?;
        if count as usize > limit {
            return Err(DecodeError::TooMany { what, count, limit });
        }
        if count as usize * item_bytes > self.left() {
            return Err(DecodeError::Short(self.bytes.len()));
        }
        (0..count).map(|_| item(self)).collect()
    }
}
