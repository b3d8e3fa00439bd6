//! Layouts as engines have them: what joins, who talks to whom, and what is refused.

use super::geometry::LayoutError;
use super::*;

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
