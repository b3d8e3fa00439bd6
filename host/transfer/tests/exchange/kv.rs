//! KV of a small model, byte by byte: where each lies, and what it should be.

use std::ops::Range;
use std::sync::Arc;

use sluice_transfer::layout::{Element, Geometry, HeadOrder, KvLayout, Order, Planes};
use sluice_transfer::memory::{HugePages, Slab};

pub const LAYERS: u32 = 4;

/// Four ranks, blocks of 16 tokens, keys apart from values.
pub const PREFILL: KvLayout = KvLayout {
    blocks: 64,
    block_tokens: 16,
    layers: LAYERS,
    planes: Planes::KeyValue,
    kv_heads: 8,
    head_dim: 8,
    element: Element::Bf16,
    tp_size: 4,
    order: Order::LayerPlaneBlock,
    head_order: HeadOrder::HeadsOutermost,
};

/// Two ranks, blocks of 32 tokens, block by block.
pub const DECODE: KvLayout = KvLayout {
    blocks: 48,
    block_tokens: 32,
    tp_size: 2,
    order: Order::BlockLayerPlane,
    head_order: HeadOrder::TokensOutermost,
    ..PREFILL
};

/// Memory of a rank, on either side of the link.
pub trait Memory {
    fn put(&self, offset: u64, bytes: &[u8]);
    fn get(&self, offset: u64, into: &mut [u8]);
}

impl Memory for Slab {
    fn put(&self, offset: u64, bytes: &[u8]) {
        self.write(offset, bytes).unwrap();
    }

    fn get(&self, offset: u64, into: &mut [u8]) {
        self.read(offset, into).unwrap();
    }
}

impl Memory for sluice_engine_sdk::Slab {
    fn put(&self, offset: u64, bytes: &[u8]) {
        self.write(offset, bytes).unwrap();
    }

    fn get(&self, offset: u64, into: &mut [u8]) {
        self.read(offset, into).unwrap();
    }
}

pub fn slabs(layout: KvLayout) -> Vec<Arc<Slab>> {
    let bytes = Geometry::new(layout).unwrap().rank_bytes();
    let slab = |_| Arc::new(Slab::create(bytes, HugePages::FromKernelOnly).unwrap());
    (0..layout.tp_size).map(slab).collect()
}

/// What a byte of a sequence's KV is.
fn mark(sequence: u64, layer: u32, plane: u64, token: u32, head: u32, byte: u64) -> u8 {
    let parts = [sequence, layer.into(), plane, token.into(), head.into(), byte];
    let hash = parts.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, part| {
        (hash ^ part).wrapping_mul(0x100_0000_01b3).rotate_left(23)
    });
    (hash >> 32) as u8
}

/// Blocks of a sequence, and its token that the first of them begins with.
pub type Run<'a> = (&'a [u32], u32);

/// All heads of some tokens in one layer: rank, offset in its slab, and what should be there.
fn each(
    layout: &KvLayout,
    (blocks, first_token): Run<'_>,
    sequence: u64,
    (tokens, layer): (Range<u32>, u32),
    mut visit: impl FnMut(usize, u64, &[u8]),
) {
    let geometry = Geometry::new(*layout).unwrap();
    let width = u64::from(layout.head_dim) * layout.element.bytes();
    let heads = u64::from(geometry.rank_heads());
    let (layers, planes) = (u64::from(layout.layers), layout.planes.count());
    let (all, block_tokens) = (u64::from(layout.blocks), u64::from(layout.block_tokens));
    for token in tokens {
        let block = u64::from(blocks[((token - first_token) / layout.block_tokens) as usize]);
        let within = u64::from((token - first_token) % layout.block_tokens);
        for plane in 0..planes {
            let at = u64::from(layer);
            let chunk = match layout.order {
                Order::LayerPlaneBlock => (at * planes + plane) * all + block,
                Order::LayerBlockPlane => (at * all + block) * planes + plane,
                Order::BlockLayerPlane => (block * layers + at) * planes + plane,
            };
            for rank in 0..layout.tp_size {
                for (local, head) in (0..heads).zip(geometry.heads_of(rank)) {
                    let row = match layout.head_order {
                        HeadOrder::TokensOutermost => (chunk * block_tokens + within) * heads + local,
                        HeadOrder::HeadsOutermost => (chunk * heads + local) * block_tokens + within,
                    };
                    let marks: Vec<u8> =
                        (0..width).map(|byte| mark(sequence, layer, plane, token, head, byte)).collect();
                    visit(rank as usize, row * width, &marks);
                }
            }
        }
    }
}

/// Computes one layer of some tokens of a sequence.
pub fn compute(
    layout: &KvLayout,
    slabs: &[Arc<impl Memory>],
    run: Run<'_>,
    sequence: u64,
    part: (Range<u32>, u32),
) {
    each(layout, run, sequence, part, |rank, offset, marks| slabs[rank].put(offset, marks));
}

/// Puts one byte in place of one layer of some tokens.
pub fn blot(layout: &KvLayout, slabs: &[Arc<impl Memory>], run: Run<'_>, part: (Range<u32>, u32), byte: u8) {
    each(layout, run, 0, part, |rank, offset, marks| slabs[rank].put(offset, &vec![byte; marks.len()]));
}

/// Bytes of one layer that are not what they should be.
pub fn wrong(
    layout: &KvLayout,
    slabs: &[Arc<impl Memory>],
    run: Run<'_>,
    sequence: u64,
    part: (Range<u32>, u32),
) -> usize {
    let mut wrong = 0;
    each(layout, run, sequence, part, |rank, offset, marks| {
        let mut found = vec![0; marks.len()];
        slabs[rank].get(offset, &mut found);
        wrong += found.iter().zip(marks).filter(|(found, mark)| found != mark).count();
    });
    wrong
}

/// The bytes of some blocks, all ranks together.
pub fn bytes_of(layout: &KvLayout, slabs: &[Arc<Slab>], blocks: &[u32]) -> Vec<u8> {
    let geometry = Geometry::new(*layout).unwrap();
    let chunk = u64::from(layout.block_tokens)
        * u64::from(geometry.rank_heads())
        * u64::from(layout.head_dim)
        * layout.element.bytes();
    let mut bytes = Vec::new();
    for slab in slabs {
        for block in blocks {
            for row in 0..u64::from(layout.layers) * layout.planes.count() {
                let at = match layout.order {
                    Order::BlockLayerPlane => {
                        u64::from(*block) * u64::from(layout.layers) * layout.planes.count() + row
                    }
                    _ => row * u64::from(layout.blocks) + u64::from(*block),
                };
                let mut found = vec![0; chunk as usize];
                slab.read(at * chunk, &mut found).unwrap();
                bytes.extend(found);
            }
        }
    }
    bytes
}
