//! The memory that KV lies in, and the books about it.
//!
//! [`Slab`] is memory that other processes map too, [`BlockTable`] says whose each block of it is, and
//! [`StagingRing`] hands out room for data that must not land in place yet. The books are pure; `unsafe` is in
//! the mapping and in the copying alone.

mod block;
mod blocks;
#[cfg(test)]
mod blocks_model;
mod copy;
mod mapping;
mod slab;
mod slab_error;
mod staging;
#[cfg(test)]
mod staging_model;

pub use block::{BlockError, BlockState, Freed};
pub use blocks::{BlockTable, MAX_BLOCKS};
pub use copy::{Stores, finish_streams};
pub use slab::{HugePages, Pages, Slab};
pub use slab_error::{OutOfRange, SlabError};
pub use staging::{MAX_STAGED, Staged, StagingError, StagingRing};
