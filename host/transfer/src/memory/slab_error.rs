//! Why there is no slab, or not so much of it.

use std::io;

/// The largest slab, in bytes: what a process can map with room left for others.
pub(super) const MAX_SLAB_BYTES: u64 = 1 << 46;

/// Why there is no slab.
#[derive(Debug, thiserror::Error)]
pub enum SlabError {
    /// A size that cannot be.
    #[error("slab of {bytes} bytes: must be 1 to {MAX_SLAB_BYTES}")]
    Size {
        /// Asked for.
        bytes: u64,
    },
    /// The system refused.
    #[error("slab of {bytes} bytes: {step} failed: {cause}")]
    System {
        /// Asked for.
        bytes: u64,
        /// Which call.
        step: &'static str,
        /// What it said.
        cause: io::Error,
    },
    /// Not a descriptor that can carry seals.
    #[error("the slab that was sent is no memfd ({cause}); create it with MFD_ALLOW_SEALING")]
    NotSealable {
        /// What the system said.
        cause: io::Error,
    },
    /// It could be cut short under the mapping, which kills whoever then touches it.
    #[error("the slab that was sent is not sealed against shrinking; add F_SEAL_SHRINK before sending it")]
    NotSealed,
    /// Its pages could be given back under the mapping, which kills likewise.
    #[error(
        "the slab that was sent is of reserved huge pages, which cannot be sealed in; send an ordinary memfd"
    )]
    ReservedPages,
    /// Less than was declared.
    #[error("the slab that was sent has {bytes} bytes, its layout needs {least_bytes}")]
    TooSmall {
        /// It has.
        bytes: u64,
        /// It needs.
        least_bytes: u64,
    },
}

/// Bytes that a slab does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} of a slab of {bytes}")]
pub struct OutOfRange {
    /// Asked for.
    pub offset: u64,
    /// Asked for.
    pub len: u64,
    /// The slab's.
    pub bytes: u64,
}
