//! Cutting a job's copies into slices that a thread does in one go. Pure.

use crate::layout::ByteCopy;

/// Bytes of a slice: some 25 us of copying, so that threads share a job, jobs share the threads, and what a slice
/// costs beside copying (a lock, twice) stays under a percent.
pub(super) const SLICE_BYTES: u64 = 512 << 10;
/// Copies of a slice: bounds the time that the lock is held to find its end.
pub(super) const SLICE_COPIES: usize = 1_024;

/// A place in a list of copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// Which copy.
    pub index: usize,
    /// Bytes of it that lie before.
    pub within: u64,
}

impl Cursor {
    /// Where a slice that begins here ends.
    pub fn slice_end(self, copies: &[ByteCopy]) -> Self {
        let (mut at, mut left) = (self, SLICE_BYTES);
        for copy in copies.iter().skip(self.index).take(SLICE_COPIES) {
            let rest = copy.len - at.within;
            if rest > left {
                return Self { within: at.within + left, ..at };
            }
            left -= rest;
            at = Self { index: at.index + 1, within: 0 };
        }
        at
    }

    /// Whether there is nothing after it.
    pub fn is_end(self, copies: &[ByteCopy]) -> bool {
        self.index >= copies.len()
    }
}

/// The copies between two places, the first and the last cut as the places say.
pub(super) fn between(copies: &[ByteCopy], from: Cursor, to: Cursor) -> impl Iterator<Item = ByteCopy> {
    let upto = to.index + usize::from(to.within > 0);
    let touched = copies.get(from.index..upto.min(copies.len())).unwrap_or_default();
    touched.iter().enumerate().map(move |(number, copy)| {
        let index = from.index + number;
        let skipped = if index == from.index { from.within } else { 0 };
        let end = if index == to.index { to.within } else { copy.len };
        ByteCopy {
            source_offset: copy.source_offset + skipped,
            sink_offset: copy.sink_offset + skipped,
            len: end - skipped,
        }
    })
}
