//! A declared layout, checked, as strides.

use std::ops::Range;

use super::{HeadOrder, KvLayout, Order};

/// The largest slab of a rank, in bytes: beyond any machine, and far from where sums of offsets overflow.
pub const MAX_RANK_BYTES: u64 = 1 << 46;
/// The most ranks of an engine: a pair has at most so many links on each side.
pub const MAX_TP_SIZE: u32 = 256;

/// Why a declared layout cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Something there must be at least one of.
    #[error("KV layout: {field} is 0; declare at least 1")]
    Zero {
        /// The member that is 0.
        field: &'static str,
    },
    /// Heads do not fall on ranks evenly.
    #[error("KV layout: {kv_heads} KV heads on tp_size {tp_size}: one must be a multiple of the other")]
    UnevenHeads {
        /// Of the model.
        kv_heads: u32,
        /// Ranks.
        tp_size: u32,
    },
    /// More ranks than [`MAX_TP_SIZE`].
    #[error("KV layout: tp_size {tp_size} is beyond the limit of {MAX_TP_SIZE}")]
    TooManyRanks {
        /// Ranks.
        tp_size: u32,
    },
    /// More bytes than [`MAX_RANK_BYTES`].
    #[error("KV layout: a rank's slab would have more than {MAX_RANK_BYTES} bytes; check its dimensions")]
    TooLarge,
}

/// A layout that was checked: all offsets in it fit a slab of [`Geometry::rank_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    layout: KvLayout,
    rank_heads: u32,
    pub(super) strides: Strides,
    rank_bytes: u64,
}

/// From one to the next, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strides {
    pub block: u64,
    pub layer: u64,
    pub plane: u64,
    pub token: u64,
    pub head: u64,
    /// One head of one token: what is never cut.
    pub head_bytes: u64,
    /// One plane of one block in one layer.
    pub chunk: u64,
}

impl Geometry {
    /// Checks what was declared.
    pub fn new(layout: KvLayout) -> Result<Self, LayoutError> {
        let counts = [
            ("blocks", layout.blocks),
            ("block_tokens", layout.block_tokens),
            ("layers", layout.layers),
            ("kv_heads", layout.kv_heads),
            ("head_dim", layout.head_dim),
            ("tp_size", layout.tp_size),
        ];
        if let Some((field, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(LayoutError::Zero { field });
        }
        let KvLayout { kv_heads, tp_size, .. } = layout;
        if tp_size > MAX_TP_SIZE {
            return Err(LayoutError::TooManyRanks { tp_size });
        }
        if kv_heads % tp_size != 0 && tp_size % kv_heads != 0 {
            return Err(LayoutError::UnevenHeads { kv_heads, tp_size });
        }
        let rank_heads = (kv_heads / tp_size).max(1);
        let counts = [layout.blocks, layout.block_tokens, layout.layers, rank_heads, layout.head_dim];
        let unit = layout.element.bytes() * layout.planes.count();
        let rank_bytes = counts.into_iter().try_fold(unit, |bytes, count| bytes.checked_mul(count.into()));
        let rank_bytes = rank_bytes.filter(|bytes| *bytes <= MAX_RANK_BYTES).ok_or(LayoutError::TooLarge)?;
        Ok(Self { layout, rank_heads, strides: Strides::of(&layout, rank_heads), rank_bytes })
    }

    /// What was declared.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Bytes of one rank's slab.
    pub fn rank_bytes(&self) -> u64 {
        self.rank_bytes
    }

    /// KV heads on one rank.
    pub fn rank_heads(&self) -> u32 {
        self.rank_heads
    }

    /// The model's heads that a rank holds.
    pub fn heads_of(&self, rank: u32) -> Range<u32> {
        let first = rank / self.replicas() * self.rank_heads;
        first..first + self.rank_heads
    }

    /// Ranks that hold the same heads; neighbours, as vLLM places them.
    pub fn replicas(&self) -> u32 {
        (self.layout.tp_size / self.layout.kv_heads).max(1)
    }
}

impl Strides {
    fn of(layout: &KvLayout, rank_heads: u32) -> Self {
        let (blocks, layers) = (u64::from(layout.blocks), u64::from(layout.layers));
        let planes = layout.planes.count();
        let (tokens, heads) = (u64::from(layout.block_tokens), u64::from(rank_heads));
        let head_bytes = u64::from(layout.head_dim) * layout.element.bytes();
        let chunk = tokens * heads * head_bytes;
        let (block, layer, plane) = match layout.order {
            Order::LayerPlaneBlock => (chunk, planes * blocks * chunk, blocks * chunk),
            Order::LayerBlockPlane => (planes * chunk, blocks * planes * chunk, chunk),
            Order::BlockLayerPlane => (layers * planes * chunk, planes * chunk, chunk),
        };
        let (token, head) = match layout.head_order {
            HeadOrder::TokensOutermost => (heads * head_bytes, head_bytes),
            HeadOrder::HeadsOutermost => (head_bytes, tokens * head_bytes),
        };
        Self { block, layer, plane, token, head, head_bytes, chunk }
    }
}
