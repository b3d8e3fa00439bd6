//! An engine: slabs, a block table, and what it was told.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use sluice_engine_sdk::wire::ToEngine;
use sluice_transfer::exchange::{Attached, Detached, Handle, Hold, Receive};
use sluice_transfer::layout::KvLayout;
use sluice_transfer::memory::{BlockTable, Freed, Slab};
use sluice_transfer::protocol::{
    Attempt, BlockRef, Direction, EngineId, Epoch, Extent, Peer, Rank, Rect, Tokens, TransferId, Verb,
};

use crate::kv;

/// Tokens of a position: the greatest that both block sizes are multiples of.
const POSITION_TOKENS: u32 = 16;

pub struct Engine {
    pub handle: Handle,
    pub peer: Peer,
    pub layout: KvLayout,
    pub slabs: Vec<Arc<Slab>>,
    pub table: Arc<Mutex<BlockTable>>,
    attached: Attached,
    pub told: Vec<ToEngine>,
    pub end: Option<Detached>,
}

/// One hand-over between two engines.
#[derive(Clone)]
pub struct Job {
    pub attempt: Attempt,
    pub verb: Verb,
    pub direction: Direction,
    pub tokens: u32,
    /// Which of them are to come.
    pub wanted: Tokens,
    pub source: Arc<[BlockRef]>,
    pub sink: Arc<[BlockRef]>,
    /// The token that the first block of the sink begins with.
    pub sink_first: u32,
}

pub fn indexes(blocks: &[BlockRef]) -> Vec<u32> {
    blocks.iter().map(|block| block.index).collect()
}

impl Engine {
    pub fn attach(handle: &Handle, engine: u128, incarnation: u64, layout: KvLayout) -> Self {
        let peer = Peer { engine: EngineId(engine), incarnation };
        let (slabs, table) = (kv::slabs(layout), BlockTable::new(layout.blocks).unwrap());
        let table = Arc::new(Mutex::new(table));
        let attached = handle.attach(peer, layout, slabs.clone(), table.clone()).unwrap();
        let (told, end) = (Vec::new(), None);
        Self { handle: handle.clone(), peer, layout, slabs, table, attached, told, end }
    }

    pub fn allocate(&self, tokens: u32) -> Arc<[BlockRef]> {
        let mut blocks = Vec::new();
        let count = tokens.div_ceil(self.layout.block_tokens);
        self.table.lock().unwrap().allocate(count, &mut blocks).unwrap();
        blocks.into()
    }

    pub fn free(&self, blocks: &[BlockRef]) {
        let mut table = self.table.lock().unwrap();
        blocks.iter().for_each(|block| assert_eq!(table.free_block(*block), Ok(Freed::Free)));
    }

    pub fn used(&self) -> u32 {
        let table = self.table.lock().unwrap();
        table.count() - table.free()
    }

    /// Hears what there is, for at most so long; blocks that are its own again go back at once.
    pub fn hear(&mut self, at_most: Duration) -> bool {
        match self.attached.events.next(at_most) {
            Ok(Some(event)) => {
                if let ToEngine::Freed { blocks } = &event {
                    self.free(blocks);
                }
                self.told.push(event);
                true
            }
            Ok(None) => false,
            Err(end) => {
                self.end = Some(end);
                false
            }
        }
    }

    pub fn next_event(&mut self) -> Result<Option<ToEngine>, Detached> {
        self.attached.events.try_next()
    }

    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Result<ToEngine, Detached>> {
        self.attached.events.poll_next(context)
    }

    pub fn was_told(&self, event: &ToEngine) -> bool {
        self.told.contains(event)
    }

    /// How an attempt ended, if it has: whether well.
    pub fn outcome(&self, attempt: Attempt) -> Option<bool> {
        self.told.iter().find_map(|event| match event {
            ToEngine::Completed { attempt: of } if *of == attempt => Some(true),
            ToEngine::Failed { attempt: of, .. } if *of == attempt => Some(false),
            _ => None,
        })
    }
}

impl Job {
    pub fn new(
        number: u128,
        verb: Verb,
        direction: Direction,
        tokens: u32,
        source: &Engine,
        sink: &Engine,
    ) -> Self {
        let attempt = Attempt { id: TransferId(number), epoch: Epoch(1) };
        let (source, sink) = (source.allocate(tokens), sink.allocate(tokens));
        let wanted = Tokens { first: 0, end: tokens };
        Self { attempt, verb, direction, tokens, wanted, source, sink, sink_first: 0 }
    }

    /// The same, of which only a part is to come, into blocks that hold that and little more.
    pub fn of_part(self, wanted: Tokens, sink: &Engine) -> Self {
        sink.free(&self.sink);
        let job = Self { wanted, ..self };
        let (comes, block_tokens) = (job.comes(), sink.layout.block_tokens);
        let sink_first = comes.start / block_tokens * block_tokens;
        let blocks = sink.allocate(comes.end - sink_first);
        Self { sink: blocks, sink_first, ..job }
    }

    /// The tokens that come: those of all positions that have a wanted one.
    pub fn comes(&self) -> Range<u32> {
        self.extent().tokens(self.extent().cells(self.wanted, kv::LAYERS).unwrap())
    }

    pub fn extent(&self) -> Extent {
        Extent { first_token: 0, end_token: self.tokens, position_tokens: POSITION_TOKENS }
    }

    pub fn hold(&self) -> Hold {
        Hold {
            id: self.attempt.id,
            extent: self.extent(),
            blocks: self.source.clone(),
            first_token: 0,
            fill_ms: 60_000,
            ttl_ms: 30_000,
            renewable: true,
            margin_ms: 1_000,
        }
    }

    pub fn receive(&self, from: Peer) -> Receive {
        Receive {
            attempt: self.attempt,
            from,
            verb: self.verb,
            direction: self.direction,
            extent: self.extent(),
            wanted: self.wanted,
            blocks: self.sink.clone(),
            first_token: self.sink_first,
            first_byte_ms: 30_000,
            whole_ms: 60_000,
        }
    }

    /// The wanted cells of a layer.
    pub fn arrives(&self, layer: u32) -> Rect {
        let wanted = self.extent().cells(self.wanted, kv::LAYERS).unwrap();
        Rect { first: wanted.first, end: wanted.end, ..self.layer(layer) }
    }

    /// The cells of a layer.
    pub fn layer(&self, layer: u32) -> Rect {
        let grid = self.extent().grid(kv::LAYERS).unwrap();
        Rect { first_layer: layer as u16, end_layer: layer as u16 + 1, ..grid.whole() }
    }

    /// What the bytes are made from.
    pub fn sequence(&self) -> u64 {
        self.attempt.id.0 as u64
    }

    /// Computes a layer at the source and says so, rank by rank.
    pub fn compute(&self, source: &Engine, layer: u32) {
        let blocks = indexes(&self.source);
        kv::compute(&source.layout, &source.slabs, (&blocks, 0), self.sequence(), (0..self.tokens, layer));
        for rank in 0..source.layout.tp_size {
            let rank = Rank(rank as u16);
            source.handle.ready(source.peer, self.attempt.id, rank, self.layer(layer)).unwrap();
        }
    }

    /// Bytes of a layer that came to the sink and are not what was computed.
    pub fn wrong(&self, sink: &Engine, layer: u32) -> usize {
        let blocks = indexes(&self.sink);
        let run = (blocks.as_slice(), self.sink_first);
        kv::wrong(&sink.layout, &sink.slabs, run, self.sequence(), (self.comes(), layer))
    }

    /// Puts one byte in place of all that came.
    pub fn blot(&self, sink: &Engine, byte: u8) {
        let blocks = indexes(&self.sink);
        for layer in 0..kv::LAYERS {
            let run = (blocks.as_slice(), self.sink_first);
            kv::blot(&sink.layout, &sink.slabs, run, (self.comes(), layer), byte);
        }
    }

    pub fn all_wrong(&self, sink: &Engine) -> usize {
        (0..kv::LAYERS).map(|layer| self.wrong(sink, layer)).sum()
    }
}
