//! What an engine declares about its KV memory.

use std::fmt;

use super::bytes::{codes, members};

/// How the KV blocks of one engine lie in the slab of each of its tensor-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Blocks in each rank's slab.
    pub blocks: u32,
    /// Tokens in one block.
    pub block_tokens: u32,
    /// Layers of the model.
    pub layers: u32,
    /// K and V, or one latent.
    pub planes: Planes,
    /// KV heads of the model, of all ranks together.
    pub kv_heads: u32,
    /// Elements of one head of one token.
    pub head_dim: u32,
    /// What is stored.
    pub element: Element,
    /// Tensor-parallel ranks, each with a slab and a link of its own.
    pub tp_size: u32,
    /// How blocks, layers and planes are nested.
    pub order: Order,
    /// How heads and tokens are nested within one plane of one block.
    pub head_order: HeadOrder,
}

/// What attention keeps for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planes {
    /// Keys and values.
    KeyValue,
    /// One compressed vector for both (multi-head latent attention).
    Latent,
}

/// How a slab is nested, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `[layer][K|V][block]`: layer-major, keys apart from values.
    LayerPlaneBlock,
    /// `[layer][block][K|V]`: layer-major.
    LayerBlockPlane,
    /// `[block][layer][K|V]`: block-major, a block's bytes are together.
    BlockLayerPlane,
}

/// How one plane of one block is nested, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// `[token][head][dim]`: NHD.
    TokensOutermost,
    /// `[head][token][dim]`: HND.
    HeadsOutermost,
}

/// What is stored. The kind counts and not only its size: bf16 read as f16 is garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    Bf16,
    /// 8-bit float, 4 bits of exponent.
    Fp8E4m3,
    /// 8-bit float, 5 bits of exponent.
    Fp8E5m2,
    /// 8-bit integer.
    Int8,
}

impl Planes {
    /// How many there are.
    pub const fn count(self) -> u64 {
        match self {
            Self::KeyValue => 2,
            Self::Latent => 1,
        }
    }
}

impl Element {
    /// Its size in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8E4m3 | Self::Fp8E5m2 | Self::Int8 => 1,
        }
    }
}

impl fmt::Display for Planes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::KeyValue => "K and V",
            Self::Latent => "one latent",
        })
    }
}

impl fmt::Display for Element {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8E4m3 => "fp8_e4m3",
            Self::Fp8E5m2 => "fp8_e5m2",
            Self::Int8 => "int8",
        })
    }
}

impl KvLayout {
    /// Bytes that each rank's slab needs; nothing where that is beyond all numbers. The host checks the rest.
    #[must_use]
    pub fn rank_bytes(&self) -> Option<u64> {
        let rank_heads = self.kv_heads.checked_div(self.tp_size)?.max(1);
        let counts = [self.blocks, self.block_tokens, self.layers, rank_heads, self.head_dim];
        counts.into_iter().try_fold(self.planes.count() * self.element.bytes(), |bytes, count| {
            bytes.checked_mul(count.into())
        })
    }
}

members!(KvLayout {
    blocks,
    block_tokens,
    layers,
    planes,
    kv_heads,
    head_dim,
    element,
    tp_size,
    order,
    head_order
});
codes!(Planes, "kind of planes": 1 => Planes::KeyValue, 2 => Planes::Latent);
codes!(Order, "order of the slab":
    1 => Order::LayerPlaneBlock, 2 => Order::LayerBlockPlane, 3 => Order::BlockLayerPlane);
codes!(HeadOrder, "order of heads": 1 => HeadOrder::TokensOutermost, 2 => HeadOrder::HeadsOutermost);
codes!(Element, "element":
    1 => Element::F32, 2 => Element::F16, 3 => Element::Bf16,
    4 => Element::Fp8E4m3, 5 => Element::Fp8E5m2, 6 => Element::Int8);
