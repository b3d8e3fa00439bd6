//! The memory that KV lies in, and the books about it.
//!
//! [`Slab`] is memory that other processes map too, [`BlockTable`] says whose each block of it is, and
//! [`StagingRing`] hands out room for data that must not land in place yet. The books are pure; `unsafe` is in
//! the mapping and in the copying alone.

mod blocks;
#[cfg(test)]
mod blocks_model;
mod copy;
mod mapping;
mod slab;
mod staging;
#[cfg(test)]
mod staging_model;

pub use blocks::{BlockError, BlockRef, BlockState, BlockTable, Freed, MAX_BLOCKS};
pub use copy::{Stores, finish_streams};
pub use slab::{HugePages, OutOfRange, Pages, Slab, SlabError};
pub use staging::{MAX_STAGED, Staged, StagingError, StagingRing};
