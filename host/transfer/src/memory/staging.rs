//! Room for data that must not land in place yet, handed out in a ring. Pure: offsets, not bytes.
//!
//! Room is taken at the front in order and comes back in any order; what is free again is used once all that was
//! taken before it is free too. So one slow user holds up the ring, and then it says that it is full.

use std::collections::VecDeque;

/// The most pieces that are out at a time: 64 B of books each, and more than transfers can be in flight.
pub const MAX_STAGED: usize = 16_384;
/// Pieces begin at cache lines.
const ALIGNMENT_BYTES: u64 = 64;

/// Room that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staged {
    /// In the ring's slab, in bytes.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
    number: u64,
}

/// Why there is no room, or nothing to give back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StagingError {
    /// Not now: try again when something was given back.
    #[error("staging is full: {len} bytes asked for, {used_bytes} of {bytes} and {pieces} pieces are out")]
    Full {
        /// Asked for.
        len: u64,
        /// Out, gaps included.
        used_bytes: u64,
        /// Of the ring.
        bytes: u64,
        /// Out.
        pieces: usize,
    },
    /// Not ever.
    #[error("{len} bytes asked for of a staging ring of {bytes}; must be 1 to {bytes}")]
    Never {
        /// Asked for.
        len: u64,
        /// Of the ring.
        bytes: u64,
    },
    /// It is not out.
    #[error("staged piece {number} was given back already")]
    NotOut {
        /// Which.
        number: u64,
    },
}

#[derive(Debug)]
struct Piece {
    /// Where the one after it may begin, counted without wrapping.
    end: u64,
    is_out: bool,
}

/// The books of one ring.
#[derive(Debug)]
pub struct StagingRing {
    bytes: u64,
    /// Bytes ever handed out and ever given back, gaps included: their difference is what is in use.
    taken: u64,
    returned: u64,
    pieces: VecDeque<Piece>,
    /// The number of the first of the pieces.
    first: u64,
}

impl StagingRing {
    /// A ring of so many bytes, rounded down to whole cache lines.
    pub fn new(bytes: u64) -> Self {
        let bytes = bytes / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
        Self { bytes, taken: 0, returned: 0, pieces: VecDeque::new(), first: 0 }
    }

    /// Takes `len` bytes in one piece.
    pub fn take(&mut self, len: u64) -> Result<Staged, StagingError> {
        if len == 0 || len > self.bytes {
            return Err(StagingError::Never { len, bytes: self.bytes });
        }
        if self.pieces.is_empty() {
            // Nothing is out, so begin anew: a piece as large as the ring must fit.
            (self.taken, self.returned) = (0, 0);
        }
        let to_edge = self.bytes - self.taken % self.bytes;
        // A piece does not wrap: what is left before the edge becomes a gap.
        let begin = if len <= to_edge { self.taken } else { self.taken + to_edge };
        let end = begin + len.next_multiple_of(ALIGNMENT_BYTES);
        if end - self.returned > self.bytes || self.pieces.len() == MAX_STAGED {
            let (used_bytes, pieces) = (self.used_bytes(), self.pieces.len());
            return Err(StagingError::Full { len, used_bytes, bytes: self.bytes, pieces });
        }
        self.taken = end;
        self.pieces.push_back(Piece { end, is_out: true });
        let number = self.first + self.pieces.len() as u64 - 1;
        Ok(Staged { offset: begin % self.bytes, len, number })
    }

    /// Gives a piece back.
    pub fn give_back(&mut self, staged: Staged) -> Result<(), StagingError> {
        let not_out = StagingError::NotOut { number: staged.number };
        let at = staged.number.checked_sub(self.first).ok_or(not_out)?;
        let piece = usize::try_from(at).ok().and_then(|at| self.pieces.get_mut(at)).ok_or(not_out)?;
        if !std::mem::replace(&mut piece.is_out, false) {
            return Err(not_out);
        }
        while let Some(piece) = self.pieces.pop_front_if(|piece| !piece.is_out) {
            self.returned = piece.end;
            self.first += 1;
        }
        Ok(())
    }

    /// Bytes in use, gaps included.
    pub fn used_bytes(&self) -> u64 {
        self.taken - self.returned
    }

    /// Bytes of the ring.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
