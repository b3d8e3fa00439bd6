//! Copying between raw addresses. The other module of this crate's memory with `unsafe` in it.
//!
//! Another process may write what is read here, and read what is written. So nothing is seen as a slice or
//! interpreted, bytes go through raw pointers only, and what a copy reads during a write is simply some bytes: the
//! protocol throws them away (a READ counts only once the holder has confirmed the blocks).
#![allow(
    unsafe_code,
    reason = "memory shared with other processes is reached by raw pointers only; all of it is here"
)]

use std::ptr;

/// How a copy stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stores {
    streamed: bool,
}

impl Stores {
    /// Through the caches, as `memcpy`.
    pub const CACHED: Self = Self { streamed: false };

    /// Past the caches (non-temporal) where this processor can, which spares reading each line before it is
    /// overwritten. Pays where more is moved than the cache would keep. [`finish_streams`] must follow before
    /// anybody is told.
    pub fn streaming() -> Self {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx") {
            return Self { streamed: true };
        }
        Self::CACHED
    }
}

/// The shortest run that is streamed: a few cache lines, so that its ends, which go through the cache, are the less.
/// Runs of 512 bytes, one token's heads, gain half again by it.
const MIN_STREAMED_BYTES: usize = 256;

/// Copies `len` bytes. The ranges may overlap; what lies there then is unspecified when streaming.
///
/// # Safety
/// `source` must be readable and `sink` writable for `len` bytes during the call, and no reference to bytes of
/// either range may exist in this process while it runs, but the caller's own to a range that is private to it.
pub(super) unsafe fn copy(source: *const u8, sink: *mut u8, len: usize, stores: Stores) {
    #[cfg(target_arch = "x86_64")]
    if stores.streamed && len >= MIN_STREAMED_BYTES {
        // SAFETY: the caller's promise about the ranges; `Stores::streaming` found AVX, and nothing else sets `streamed`.
        return unsafe { stream(source, sink, len) };
    }
    let _ = stores;
    // SAFETY: the caller's promise about the ranges.
    unsafe { ptr::copy(source, sink, len) }
}

/// Makes streamed stores of this thread visible before whatever it does next.
pub fn finish_streams() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE, and the instruction touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// # Safety
/// As [`copy`], and the processor has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn stream(source: *const u8, sink: *mut u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
    const VECTOR: usize = size_of::<__m256i>();
    /// Two cache lines a turn.
    const TURN: usize = 4 * VECTOR;

    let head = sink.align_offset(VECTOR).min(len);
    let body = (len - head) / TURN * TURN;
    // SAFETY: head, body and tail are parts of the caller's ranges, `head + body <= len`, and the sink is aligned
    // to a vector after the head. Loads need no alignment.
    unsafe {
        ptr::copy(source, sink, head);
        let (from, to) = (source.add(head), sink.add(head));
        for at in (0..body).step_by(TURN) {
            let (from, to) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
            let vectors = [0, 1, 2, 3].map(|index| _mm256_loadu_si256(from.add(index)));
            for (index, vector) in vectors.into_iter().enumerate() {
                _mm256_stream_si256(to.add(index), vector);
            }
        }
        let done = head + body;
        ptr::copy(source.add(done), sink.add(done), len - done);
    }
}
