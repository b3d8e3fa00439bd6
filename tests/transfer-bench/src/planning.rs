//! What it costs to find out which bytes to move.

use std::hint::black_box;
use std::time::Duration;

use sluice_harness::table::Table;
use sluice_transfer::layout::{
    Blocks, Element, Geometry, HeadOrder, KvLayout, Order, Pair, Part, Plan, Planes,
};

use crate::rounds::{Case, measure};

const TOKENS: u32 = 16_384;
/// Qwen3-0.6B: 114,688 bytes a token.
const MODEL: KvLayout = KvLayout {
    blocks: 4_096,
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

/// Plans a sequence of 16k tokens, all links and layers, and walks through all copies.
pub fn run(rounds: usize) -> anyhow::Result<()> {
    let block_major = KvLayout { order: Order::BlockLayerPlane, ..MODEL };
    let heads_outermost = |tp_size| KvLayout { tp_size, head_order: HeadOrder::HeadsOutermost, ..MODEL };
    let shapes = [
        ("layer-major", MODEL, MODEL),
        ("block-major", block_major, block_major),
        ("block-major to layer-major", block_major, MODEL),
        ("blocks of 16 to blocks of 32", MODEL, KvLayout { block_tokens: 32, ..MODEL }),
        ("tp 4 to tp 2, heads outermost", heads_outermost(4), heads_outermost(2)),
        (
            "tp 4 to tp 2, tokens outermost",
            KvLayout { tp_size: 4, ..MODEL },
            KvLayout { tp_size: 2, ..MODEL },
        ),
    ];
    let mut table =
        Table::new(&["16k tokens", "runs before", "runs", "KiB a run", "us", "at 10 GB/s, of its time"]);
    for (name, source, sink) in shapes {
        let pair = Pair::new(Geometry::new(source)?, Geometry::new(sink)?)?;
        let mut plan = Plan::default();
        let (mut before, mut after, mut bytes) = (0, 0, 0);
        for link in pair.links() {
            plan.fill(&pair, link, &part(&blocks(&source), &blocks(&sink)))?;
            (before, after, bytes) = (before + plan.runs_before(), after + plan.runs(), bytes + plan.bytes());
        }
        let lists = (blocks(&source), blocks(&sink));
        let plan_all = || {
            for link in pair.links() {
                plan.fill(&pair, link, &part(&lists.0, &lists.1))?;
                black_box(plan.copies().fold(0, |sum, copy| sum ^ copy.sink_offset ^ copy.source_offset));
            }
            Ok(())
        };
        let best = measure(vec![Case::new(name, bytes, 3, plan_all)], rounds)?
            .first()
            .map_or(Duration::ZERO, |time| time.best);
        let copying = Duration::from_secs_f64(bytes as f64 / 10e9);
        table.row([
            name.to_owned(),
            before.to_string(),
            after.to_string(),
            format!("{:.1}", bytes as f64 / after as f64 / 1024.0),
            format!("{:.0}", best.as_secs_f64() * 1e6),
            format!("{:.2}%", best.as_secs_f64() / copying.as_secs_f64() * 100.0),
        ]);
    }
    println!("planning, blocks in runs of 8\n{table}");
    Ok(())
}

/// Every other run of 8 blocks.
fn blocks(layout: &KvLayout) -> Vec<u32> {
    (0..TOKENS / layout.block_tokens).map(|block| block / 8 * 16 + block % 8).collect()
}

fn part<'a>(source: &'a [u32], sink: &'a [u32]) -> Part<'a> {
    let side = |blocks| Blocks { blocks, first_token: 0 };
    Part { source: side(source), sink: side(sink), tokens: 0..TOKENS, layers: 0..MODEL.layers }
}
