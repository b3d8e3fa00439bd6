//! The plan held against a copier that moves one byte of one element at a time and knows nothing of strides.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

/// Where a byte of the model's KV lies: the declared nesting, read as nested arrays.
fn offset(g: &Geometry, block: u32, layer: u32, plane: u64, token: u32, head: u32, byte: u64) -> u64 {
    let l = g.layout();
    let width = u64::from(l.head_dim) * l.element.bytes();
    let (layers, blocks, planes) = (u64::from(l.layers), u64::from(l.blocks), l.planes.count());
    let (tokens, heads) = (u64::from(l.block_tokens), u64::from(g.rank_heads()));
    let (block, layer, token, head) = (u64::from(block), u64::from(layer), u64::from(token), u64::from(head));
    let chunk = match l.order {
        Order::LayerPlaneBlock => (layer * planes + plane) * blocks + block,
        Order::LayerBlockPlane => (layer * blocks + block) * planes + plane,
        Order::BlockLayerPlane => (block * layers + layer) * planes + plane,
    };
    let row = match l.head_order {
        HeadOrder::TokensOutermost => (chunk * tokens + token) * heads + head,
        HeadOrder::HeadsOutermost => (chunk * heads + head) * tokens + token,
    };
    row * width + byte
}

/// A byte that tells which one it is, whichever rank holds it.
fn mark(layer: u32, plane: u64, token: u32, head: u32, byte: u64) -> u8 {
    let parts = [u64::from(layer), plane, u64::from(token), u64::from(head), byte];
    parts.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, part| (hash ^ part).wrapping_mul(0x100_0000_01b3))
        as u8
}

#[derive(Debug, Clone)]
struct Case {
    source: KvLayout,
    sink: KvLayout,
    source_blocks: Vec<u32>,
    sink_blocks: Vec<u32>,
    /// Blocks of each side that are left out at the front of its list.
    skipped: (u32, u32),
    tokens: std::ops::Range<u32>,
    layers: std::ops::Range<u32>,
}

/// Each byte of the part, at both sides: what the plan must do, no more and no less.
fn each_byte(case: &Case, pair: &Pair, mut put: impl FnMut(u32, u64, u8)) {
    let (sink, to) = (pair.sink(), pair.sink().layout());
    for rank in 0..to.tp_size {
        for (local, head) in sink.heads_of(rank).enumerate() {
            for token in case.tokens.clone() {
                let block = case.sink_blocks[(token / to.block_tokens) as usize];
                for layer in case.layers.clone() {
                    for plane in 0..to.planes.count() {
                        for byte in 0..u64::from(to.head_dim) * to.element.bytes() {
                            let within = token % to.block_tokens;
                            let at = offset(sink, block, layer, plane, within, local as u32, byte);
                            put(rank, at, mark(layer, plane, token, head, byte));
                        }
                    }
                }
            }
        }
    }
}

/// All source slabs, the sequence's bytes marked in its blocks, the rest of them 0xEE.
fn source_slabs(case: &Case, source: &Geometry) -> Vec<Vec<u8>> {
    let from = source.layout();
    let mut slabs = vec![vec![0xEE; source.rank_bytes() as usize]; from.tp_size as usize];
    for (rank, slab) in slabs.iter_mut().enumerate() {
        for (local, head) in source.heads_of(rank as u32).enumerate() {
            for token in 0..case.source_blocks.len() as u32 * from.block_tokens {
                let block = case.source_blocks[(token / from.block_tokens) as usize];
                for layer in 0..from.layers {
                    for plane in 0..from.planes.count() {
                        for byte in 0..u64::from(from.head_dim) * from.element.bytes() {
                            let within = token % from.block_tokens;
                            let at = offset(source, block, layer, plane, within, local as u32, byte);
                            slab[at as usize] = mark(layer, plane, token, head, byte);
                        }
                    }
                }
            }
        }
    }
    slabs
}

fn check(case: &Case) {
    let (source, sink) = (Geometry::new(case.source).unwrap(), Geometry::new(case.sink).unwrap());
    let pair = Pair::new(source, sink).unwrap();
    let sources = source_slabs(case, &source);
    let empty = vec![vec![0x55_u8; sink.rank_bytes() as usize]; case.sink.tp_size as usize];
    let (mut moved, mut expected, mut written) = (empty.clone(), empty.clone(), empty.clone());
    each_byte(case, &pair, |rank, at, byte| expected[rank as usize][at as usize] = byte);

    let (from_skip, to_skip) = case.skipped;
    let part = Part {
        source: Blocks {
            blocks: &case.source_blocks[from_skip as usize..],
            first_token: from_skip * case.source.block_tokens,
        },
        sink: Blocks {
            blocks: &case.sink_blocks[to_skip as usize..],
            first_token: to_skip * case.sink.block_tokens,
        },
        tokens: case.tokens.clone(),
        layers: case.layers.clone(),
    };
    let mut plan = Plan::default();
    for link in pair.links() {
        plan.fill(&pair, link, &part).unwrap();
        let (mut bytes, mut runs) = (0, 0);
        for copy in plan.copies() {
            let (from, to, len) = (copy.source_offset as usize, copy.sink_offset as usize, copy.len as usize);
            let from = &sources[link.source_rank as usize][from..from + len];
            moved[link.sink_rank as usize][to..to + len].copy_from_slice(from);
            for count in &mut written[link.sink_rank as usize][to..to + len] {
                assert_eq!(*count, 0x55, "a byte of the sink is written twice");
                *count += 1;
            }
            (bytes, runs) = (bytes + copy.len, runs + 1);
        }
        assert_eq!((plan.bytes(), plan.runs()), (bytes, runs));
        assert!(plan.runs() <= plan.runs_before());
    }
    assert!(moved == expected, "the plan moved other bytes than the part's");
}

fn layout(kv_heads: u32, layers: u32, planes: Planes) -> impl Strategy<Value = KvLayout> {
    let ranks = (1..=8_u32).filter(|tp| kv_heads.is_multiple_of(*tp) || tp.is_multiple_of(kv_heads));
    let ranks: Vec<u32> = ranks.collect();
    let orders = vec![Order::LayerPlaneBlock, Order::LayerBlockPlane, Order::BlockLayerPlane];
    let heads = vec![HeadOrder::TokensOutermost, HeadOrder::HeadsOutermost];
    (1..=6_u32, select(ranks), select(orders), select(heads)).prop_map(
        move |(block_tokens, tp_size, order, head_order)| KvLayout {
            blocks: 24,
            block_tokens,
            layers,
            planes,
            kv_heads,
            head_dim: 2,
            element: Element::Int8,
            tp_size,
            order,
            head_order,
        },
    )
}

/// Blocks in any order, or neighbours.
fn blocks(count: u32) -> impl Strategy<Value = Vec<u32>> {
    let scattered = subsequence((0..24).collect::<Vec<u32>>(), count as usize).prop_shuffle();
    let neighbours = (0..=24 - count).prop_map(move |first| (first..first + count).collect());
    prop_oneof![scattered, neighbours]
}

fn case() -> impl Strategy<Value = Case> {
    let model = (select(vec![1, 2, 4, 8_u32]), 1..=3_u32, select(vec![Planes::KeyValue, Planes::Latent]));
    let sides = model.prop_flat_map(|(heads, layers, planes)| {
        (layout(heads, layers, planes), layout(heads, layers, planes), 0..=20_u32, 0..=20_u32)
    });
    sides.prop_flat_map(|(source, sink, one, other)| {
        let tokens = one.min(other)..one.max(other);
        let lists = (
            blocks(tokens.end.div_ceil(source.block_tokens)),
            blocks(tokens.end.div_ceil(sink.block_tokens)),
        );
        let skipped = (0..=tokens.start / source.block_tokens, 0..=tokens.start / sink.block_tokens);
        (lists, skipped, (0..=source.layers, 0..=source.layers)).prop_map(move |(lists, skipped, layers)| {
            Case {
                source,
                sink,
                source_blocks: lists.0,
                sink_blocks: lists.1,
                skipped,
                tokens: tokens.clone(),
                layers: layers.0.min(layers.1)..layers.0.max(layers.1),
            }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]
    #[test]
    fn plans_move_what_a_naive_copier_moves(case in case()) {
        check(&case);
    }
}
