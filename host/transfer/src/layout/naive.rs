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
    let ranks: Vec<u32> = (1..=8).filter(|tp| kv_heads % tp == 0 || tp % kv_heads == 0).collect();
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

const QWEN: KvLayout = KvLayout {
    blocks: 2_048,
    block_tokens: 16,
    layers: 28,
    planes: Planes::KeyValue,
    kv_heads: 8,
    head_dim: 128,
    element: Element::Bf16,
    tp_size: 1,
    order: Order::LayerPlaneBlock,
    head_order: HeadOrder::TokensOutermost,
};

/// Runs of 1,024 tokens whose blocks are neighbours, all links together: before joining and after.
fn runs(source: KvLayout, sink: KvLayout) -> (u64, u64) {
    let pair = Pair::new(Geometry::new(source).unwrap(), Geometry::new(sink).unwrap()).unwrap();
    let blocks: Vec<u32> = (100..1_200).collect();
    let side = Blocks { blocks: &blocks, first_token: 0 };
    let part = Part { source: side, sink: side, tokens: 0..1_024, layers: 0..28 };
    let mut plan = Plan::default();
    pair.links().iter().fold((0, 0), |(before, after), link| {
        plan.fill(&pair, link, &part).unwrap();
        (before + plan.runs_before(), after + plan.runs())
    })
}

#[test]
fn neighbours_become_one_run() {
    use HeadOrder::HeadsOutermost;
    use Order::{BlockLayerPlane, LayerBlockPlane};
    let cases = [
        ("keys apart from values", QWEN, QWEN, (64 * 56, 56)),
        (
            "K and V together",
            KvLayout { order: LayerBlockPlane, ..QWEN },
            KvLayout { order: LayerBlockPlane, ..QWEN },
            (64 * 56, 28),
        ),
        (
            "block-major",
            KvLayout { order: BlockLayerPlane, ..QWEN },
            KvLayout { order: BlockLayerPlane, ..QWEN },
            (64 * 56, 1),
        ),
        ("block-major to layer-major", KvLayout { order: BlockLayerPlane, ..QWEN }, QWEN, (64 * 56, 64 * 56)),
        (
            "heads outermost, tp 4 to tp 2",
            KvLayout { tp_size: 4, head_order: HeadsOutermost, ..QWEN },
            KvLayout { tp_size: 2, head_order: HeadsOutermost, ..QWEN },
            (4 * 64 * 56, 4 * 64 * 56),
        ),
        (
            "tokens outermost, tp 4 to tp 2",
            KvLayout { tp_size: 4, ..QWEN },
            KvLayout { tp_size: 2, ..QWEN },
            (4 * 1_024 * 56, 4 * 1_024 * 56),
        ),
        ("blocks of 16 to blocks of 32", QWEN, KvLayout { block_tokens: 32, ..QWEN }, (64 * 56, 56)),
    ];
    for (name, source, sink, expected) in cases {
        assert_eq!(runs(source, sink), expected, "{name}");
    }
}

#[test]
fn every_sink_rank_gets_each_of_its_heads_once() {
    for (kv_heads, source_tp, sink_tp, links) in
        [(8, 4, 2, 4), (8, 2, 4, 4), (8, 1, 8, 8), (2, 8, 1, 2), (2, 8, 4, 4), (1, 4, 4, 4), (2, 4, 8, 8)]
    {
        let side = |tp_size| Geometry::new(KvLayout { kv_heads, tp_size, ..QWEN }).unwrap();
        let pair = Pair::new(side(source_tp), side(sink_tp)).unwrap();
        assert_eq!(pair.links().len(), links, "{kv_heads} heads, tp {source_tp} to {sink_tp}");
        for rank in 0..sink_tp {
            let into = pair.links().iter().filter(|link| link.sink_rank == rank);
            let mut heads: Vec<u32> =
                into.flat_map(|link| link.sink_head..link.sink_head + link.heads).collect();
            heads.sort_unstable();
            assert_eq!(heads, (0..pair.sink().rank_heads()).collect::<Vec<_>>());
            assert!(pair.links_into(rank) > 0);
        }
    }
}

#[test]
fn replicated_heads_are_read_from_different_ranks() {
    let side = Geometry::new(KvLayout { kv_heads: 2, tp_size: 8, ..QWEN }).unwrap();
    let pair = Pair::new(side, side).unwrap();
    assert!(pair.links().iter().all(|link| link.source_rank == link.sink_rank));
}

#[test]
fn what_differs_is_named_with_both_values() {
    let cases = [
        (KvLayout { layers: 36, ..QWEN }, "layers is 28 at the source and 36 at the sink"),
        (
            KvLayout { planes: Planes::Latent, ..QWEN },
            "planes is K and V at the source and one latent at the sink",
        ),
        (KvLayout { kv_heads: 4, ..QWEN }, "kv_heads is 8 at the source and 4 at the sink"),
        (KvLayout { head_dim: 64, ..QWEN }, "head_dim is 128 at the source and 64 at the sink"),
        (KvLayout { element: Element::F16, ..QWEN }, "element is bf16 at the source and f16 at the sink"),
    ];
    for (sink, told) in cases {
        let refused = Pair::new(Geometry::new(QWEN).unwrap(), Geometry::new(sink).unwrap()).unwrap_err();
        assert!(refused.to_string().contains(told), "{refused}");
    }
}

#[test]
fn impossible_layouts_are_refused() {
    let cases = [
        (KvLayout { layers: 0, ..QWEN }, LayoutError::Zero { field: "layers" }),
        (KvLayout { blocks: 0, ..QWEN }, LayoutError::Zero { field: "blocks" }),
        (KvLayout { tp_size: 3, ..QWEN }, LayoutError::UnevenHeads { kv_heads: 8, tp_size: 3 }),
        (KvLayout { tp_size: 12, ..QWEN }, LayoutError::UnevenHeads { kv_heads: 8, tp_size: 12 }),
        (KvLayout { tp_size: 512, ..QWEN }, LayoutError::TooManyRanks { tp_size: 512 }),
        (KvLayout { blocks: u32::MAX, layers: u32::MAX, head_dim: u32::MAX, ..QWEN }, LayoutError::TooLarge),
    ];
    for (layout, refused) in cases {
        assert_eq!(Geometry::new(layout), Err(refused));
    }
}

#[test]
fn parts_beyond_what_is_there_are_refused() {
    let side = Geometry::new(QWEN).unwrap();
    let pair = Pair::new(side, side).unwrap();
    let (good, far, none) = ([0, 1], [0, 2_048], []);
    let blocks = |blocks| Blocks { blocks, first_token: 16 };
    let (link, mut plan) = (pair.links()[0], Plan::default());
    let mut told = |source, sink, tokens, layers| {
        let part = Part { source: blocks(source), sink: blocks(sink), tokens, layers };
        plan.fill(&pair, &link, &part).map_err(|refused| refused.to_string())
    };
    assert_eq!(told(&good, &good, 16..48, 0..28), Ok(()));
    assert_eq!(told(&none, &none, 16..16, 0..28), Ok(()));
    let refusals = [
        (told(&good, &good, 16..49, 0..28), "tokens 16..49 at the source, whose blocks hold 16..48"),
        (told(&good, &good, 15..48, 0..28), "tokens 15..48 at the source, whose blocks hold 16..48"),
        (told(&good, &good[..1], 16..48, 0..28), "tokens 16..48 at the sink, whose blocks hold 16..32"),
        (told(&good, &far, 16..48, 0..28), "block 2048 at the sink, whose slab has 2048"),
        (told(&good, &good, 16..48, 0..29), "layers 0..29 of a model with 28"),
    ];
    for (refused, message) in refusals {
        assert_eq!(refused, Err(message.to_owned()));
    }
    let stranger = RankLink { source_rank: 1, ..link };
    let part = Part { source: blocks(&good), sink: blocks(&good), tokens: 16..48, layers: 0..28 };
    assert_eq!(plan.fill(&pair, &stranger, &part), Err(PartError::Link { source_rank: 1, sink_rank: 0 }));
}
