//! Bytes per second of KV blocks, each time planned and sent: neighbours, scattered, and with heads split.

use sluice_transfer::layout::{
    Blocks, ByteCopy, Element, Geometry, HeadOrder, KvLayout, Order, Pair, Part, Plan, Planes,
};

use crate::copies::{THREADS, ratio, show, shuffled, threads_of};
use crate::rounds::{Case, Time, measure};
use crate::sides::{Sides, Way};

/// One block in one layer, K or V: 16 tokens of 4 heads of 128 in bf16.
const BLOCK_BYTES: u64 = 16 << 10;
/// Blocks that are neighbours.
const RUN_BLOCKS: u64 = 8;
const LAYERS: u32 = 16;
const BLOCK_TOKENS: u32 = 16;

/// Prints tables; answers how scattered blocks compare with neighbours, with one copy thread: with more, the figures
/// tell first of all whether other work left the cores free.
pub fn run(sides: &Sides, rounds: usize, bytes: u64) -> anyhow::Result<f64> {
    let blocks = bytes / BLOCK_BYTES / u64::from(LAYERS) / 2;
    // Three quarters of the slab, so that runs have gaps between them.
    let used = blocks * 3 / 4 / RUN_BLOCKS * RUN_BLOCKS;
    let neighbours: Vec<u32> = (0..used as u32).collect();
    let spread = |seed| -> Vec<u32> {
        let runs = shuffled(blocks / RUN_BLOCKS, seed).into_iter().take((used / RUN_BLOCKS) as usize);
        runs.flat_map(|run| run * RUN_BLOCKS..(run + 1) * RUN_BLOCKS).map(|block| block as u32).collect()
    };
    // A rank has 4 heads in all of these, or takes 2 of the other side's 4.
    let whole = layout(blocks, 4, 1, HeadOrder::TokensOutermost);
    let split = |head_order| {
        let one = layout(blocks, 8, 4, head_order);
        (one, layout(blocks / 2, 8, 2, head_order))
    };
    let half = |list: Vec<u32>| list.into_iter().take(used as usize / 2 / 8 * 8).collect::<Vec<_>>();
    let few = half(neighbours.clone());
    let sequences = [
        Sequence::new("neighbours", (whole, whole), neighbours.clone(), neighbours)?,
        Sequence::new("runs of 8", (whole, whole), spread(3), spread(4))?,
        Sequence::new(
            "tp 4 to tp 2, heads outermost",
            split(HeadOrder::HeadsOutermost),
            few.clone(),
            few.clone(),
        )?,
        Sequence::new("tp 4 to tp 2, tokens outermost", split(HeadOrder::TokensOutermost), few.clone(), few)?,
    ];
    let mut scattered = 0.0;
    for threads in THREADS {
        let times = sent(sides, &sequences, threads, rounds)?;
        show(&format!("cold, blocks of 16 KiB, planned and sent, {}", threads_of(threads)), &times);
        if threads == 1 {
            scattered = ratio(&times[1], &times[0]);
        }
    }
    Ok(scattered)
}

fn layout(blocks: u64, kv_heads: u32, tp_size: u32, head_order: HeadOrder) -> KvLayout {
    KvLayout {
        blocks: blocks as u32,
        block_tokens: BLOCK_TOKENS,
        layers: LAYERS,
        planes: Planes::KeyValue,
        kv_heads,
        head_dim: 128,
        element: Element::Bf16,
        tp_size,
        order: Order::LayerPlaneBlock,
        head_order,
    }
}

/// What is sent: a sequence's blocks over the first link of a pair.
struct Sequence {
    name: &'static str,
    pair: Pair,
    source: Vec<u32>,
    sink: Vec<u32>,
}

impl Sequence {
    fn new(
        name: &'static str,
        (from, to): (KvLayout, KvLayout),
        source: Vec<u32>,
        sink: Vec<u32>,
    ) -> anyhow::Result<Self> {
        Ok(Self { name, pair: Pair::new(Geometry::new(from)?, Geometry::new(to)?)?, source, sink })
    }

    fn plan(&self, plan: &mut Plan) -> anyhow::Result<()> {
        let side = |blocks| Blocks { blocks, first_token: 0 };
        let tokens = 0..self.source.len() as u32 * BLOCK_TOKENS;
        let part = Part { source: side(&self.source), sink: side(&self.sink), tokens, layers: 0..LAYERS };
        Ok(plan.fill(&self.pair, &self.pair.links()[0], &part)?)
    }
}

fn sent(sides: &Sides, sequences: &[Sequence], threads: usize, rounds: usize) -> anyhow::Result<Vec<Time>> {
    let mut cases = Vec::new();
    for sequence in sequences {
        let (mut way, mut plan) = (Way::new(sides, threads)?, Plan::default());
        sequence.plan(&mut plan)?;
        let copies: Vec<ByteCopy> = plan.copies().collect();
        sides.wipe(&copies)?;
        way.send(copies.iter().copied())?;
        sides.check(&copies)?;
        let name =
            format!("{}, {} KiB a run", sequence.name, plan.bytes() as f64 / plan.runs() as f64 / 1024.0);
        cases.push(Case::new(name, plan.bytes(), 1, move || {
            sequence.plan(&mut plan)?;
            way.send(plan.copies())
        }));
    }
    measure(cases, rounds)
}
