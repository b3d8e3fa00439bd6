//! A sequence's KV through layout, memory and fabric together, as a host moves it.

use std::sync::Arc;
use std::time::Duration;

use sluice_transfer::fabric::{
    Endpoint, Fabric, PeerId, Post, RegionId, ShmFabric, ShmSettings, Ticket, Verb,
};
use sluice_transfer::layout::{
    Blocks, Element, Geometry, HeadOrder, KvLayout, Order, Pair, Part, Plan, Planes,
};
use sluice_transfer::memory::Slab;

use crate::slabs::{bytes_of, slab};

const PATIENCE: Duration = Duration::from_secs(30);
const LAYERS: u32 = 6;
const TOKENS: u32 = 150;

/// An engine: a slab for each rank, and where the sequence lies in them.
struct Engine {
    geometry: Geometry,
    ranks: Vec<Arc<Slab>>,
    blocks: Vec<u32>,
}

impl Engine {
    fn new(tp_size: u32, block_tokens: u32, order: Order, head_order: HeadOrder, salt: u8) -> Self {
        let layout = KvLayout {
            blocks: 40,
            block_tokens,
            layers: LAYERS,
            planes: Planes::KeyValue,
            kv_heads: 8,
            head_dim: 64,
            element: Element::Bf16,
            tp_size,
            order,
            head_order,
        };
        let geometry = Geometry::new(layout).unwrap();
        let rank = |rank| Arc::new(slab(geometry.rank_bytes(), salt + rank as u8));
        let count = TOKENS.div_ceil(block_tokens);
        let blocks = (0..count).map(|number| (number * 7 + 3) % 40).collect();
        Self { geometry, ranks: (0..tp_size).map(rank).collect(), blocks }
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        self.ranks.iter().map(|rank| bytes_of(rank)).collect()
    }
}

/// Moves the sequence as a prefill makes it: some layers at a time. A post has so many copies at most.
fn send(from: &Engine, to: &Engine, verb: Verb) {
    let pair = Pair::new(from.geometry, to.geometry).unwrap();
    let fabric = ShmFabric::start(ShmSettings { streamed_from_bytes: 0, ..ShmSettings::default() }).unwrap();
    let (source, sink) = (from.ranks.clone(), to.ranks.clone());
    let endpoint = match verb {
        Verb::Write => Endpoint { local: source, remote: sink },
        Verb::Read => Endpoint { local: sink, remote: source },
    };
    let peer = PeerId(1);
    fabric.open_peer(peer, endpoint).unwrap();
    let (mut plan, mut posted, mut ends) = (Plan::default(), 0, Vec::new());
    for first in (0..LAYERS).step_by(2) {
        for link in pair.links() {
            let side = |blocks| Blocks { blocks, first_token: 0 };
            let (source, sink) = (side(&from.blocks), side(&to.blocks));
            plan.fill(&pair, link, &Part { source, sink, tokens: 0..TOKENS, layers: first..first + 2 })
                .unwrap();
            let copies: Vec<_> = plan.copies().collect();
            for copies in copies.chunks(100).map(Vec::from) {
                let (source, sink) = (RegionId(link.source_rank), RegionId(link.sink_rank));
                let (local, remote) = if verb == Verb::Write { (source, sink) } else { (sink, source) };
                let (ticket, runs_before) = (Ticket(posted), copies.len() as u64);
                let mut post = Post { peer, ticket, verb, local, remote, copies, runs_before };
                while let Err(refused) = fabric.post(post) {
                    assert!(fabric.poll(&mut ends, PATIENCE) > 0, "{}", refused.cause);
                    post = refused.post;
                }
                posted += 1;
            }
        }
    }
    while (ends.len() as u64) < posted {
        assert!(fabric.poll(&mut ends, PATIENCE) > 0);
    }
    assert!(ends.iter().all(|end| end.result == Ok(())));
    fabric.close_peer(peer, PATIENCE).unwrap();
}

#[test]
fn what_goes_to_other_engines_and_back_is_what_it_was() {
    use HeadOrder::{HeadsOutermost, TokensOutermost};
    let routes = [
        Engine::new(2, 32, Order::BlockLayerPlane, HeadsOutermost, 50),
        Engine::new(2, 16, Order::LayerPlaneBlock, TokensOutermost, 50),
        Engine::new(1, 5, Order::LayerBlockPlane, HeadsOutermost, 50),
        Engine::new(16, 16, Order::LayerBlockPlane, TokensOutermost, 50),
    ];
    let start = Engine::new(4, 16, Order::LayerPlaneBlock, TokensOutermost, 1);
    for over in routes {
        // It has what the start has everywhere but in the sequence's blocks.
        let end = Engine::new(4, 16, Order::LayerPlaneBlock, TokensOutermost, 1);
        for rank in &end.ranks {
            blank(&end.geometry, rank, &end.blocks);
        }
        assert!(end.bytes() != start.bytes());
        send(&start, &over, Verb::Write);
        send(&over, &end, Verb::Read);
        assert!(end.bytes() == start.bytes(), "over {:?}", over.geometry.layout());
    }
}

/// Zeroes the tokens of these blocks in a layer-major slab whose planes are apart.
fn blank(geometry: &Geometry, rank: &Slab, blocks: &[u32]) {
    let layout = geometry.layout();
    let token_bytes = u64::from(geometry.rank_heads() * layout.head_dim) * layout.element.bytes();
    let block_bytes = u64::from(layout.block_tokens) * token_bytes;
    for plane in 0..u64::from(layout.layers) * 2 {
        for (number, block) in blocks.iter().enumerate() {
            let tokens = (TOKENS - number as u32 * layout.block_tokens).min(layout.block_tokens);
            let at = (plane * u64::from(layout.blocks) + u64::from(*block)) * block_bytes;
            rank.write(at, &vec![0; (u64::from(tokens) * token_bytes) as usize]).unwrap();
        }
    }
}
