//! Copies that grow while they touch, and the spreading of one run over strides.

use super::ByteCopy;

/// One direction in which a run repeats: how often, and how far apart on each side in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stride {
    pub count: u64,
    pub source: u64,
    pub sink: u64,
}

impl Stride {
    pub const ONCE: Self = Self { count: 1, source: 0, sink: 0 };
}

/// The directions that a run of bytes repeats in, those that only make it longer taken out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spread<const N: usize> {
    strides: [Stride; N],
    left: usize,
    run: u64,
}

impl<const N: usize> Spread<N> {
    /// `unit` bytes, repeated in `strides`. Joins what is gapless on both sides.
    pub fn new(unit: u64, mut strides: [Stride; N]) -> Self {
        strides.sort_unstable_by_key(|stride| stride.source);
        let (mut left, mut run) = (0, unit);
        for at in 0..N {
            let stride = strides[at];
            if stride.count == 1 {
                continue;
            }
            if left == 0 && stride.source == run && stride.sink == run {
                run *= stride.count;
            } else {
                strides[left] = stride;
                left += 1;
            }
        }
        Self { strides, left, run }
    }

    /// Runs that it makes.
    pub fn runs(&self) -> u64 {
        self.strides[..self.left].iter().map(|stride| stride.count).product()
    }

    /// Puts all runs down, beginning at these offsets.
    pub fn put(&self, source_offset: u64, sink_offset: u64, pieces: &mut Vec<ByteCopy>) {
        put(&self.strides[..self.left], ByteCopy { source_offset, sink_offset, len: self.run }, pieces);
    }
}

fn put(strides: &[Stride], at: ByteCopy, pieces: &mut Vec<ByteCopy>) {
    let Some((outermost, inner)) = strides.split_last() else {
        return join(at, pieces);
    };
    for index in 0..outermost.count {
        let source_offset = at.source_offset + index * outermost.source;
        let sink_offset = at.sink_offset + index * outermost.sink;
        put(inner, ByteCopy { source_offset, sink_offset, len: at.len }, pieces);
    }
}

fn join(next: ByteCopy, pieces: &mut Vec<ByteCopy>) {
    if let Some(last) = pieces.last_mut()
        && last.source_offset + last.len == next.source_offset
        && last.sink_offset + last.len == next.sink_offset
    {
        last.len += next.len;
        return;
    }
    pieces.push(next);
}
