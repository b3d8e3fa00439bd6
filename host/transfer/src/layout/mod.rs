//! Which bytes of one engine's KV memory are which bytes of another's. Pure: no memory is touched here.
//!
//! A [`KvLayout`] is what an engine declares, a [`Geometry`] is one that was checked, a [`Pair`] is two that can
//! exchange KV, and a [`Plan`] is the byte copies of one part of a transfer between one rank of each.
//!
//! Supported, on each side on its own: any block size; layer-major and block-major slabs; K and V apart or as one
//! latent; heads or tokens outermost within a block; tensor parallelism that divides the KV heads evenly, or that
//! is a multiple of them (then each head lies on several ranks, and one of those is read).

#[cfg(test)]
mod cases;
mod geometry;
#[cfg(test)]
mod naive;
mod pair;
mod pieces;
mod plan;

pub use geometry::{Geometry, LayoutError, MAX_RANK_BYTES, MAX_TP_SIZE};
pub use pair::{Mismatch, Pair, RankLink};
pub use plan::{Blocks, MAX_PIECES, Part, PartError, Plan};
pub use sluice_engine_sdk::wire::{Element, HeadOrder, KvLayout, Order, Planes};

/// Bytes to copy from a source rank's slab to a sink rank's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteCopy {
    /// In the source slab, in bytes.
    pub source_offset: u64,
    /// In the sink slab, in bytes.
    pub sink_offset: u64,
    /// In bytes.
    pub len: u64,
}
