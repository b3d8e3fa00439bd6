//! An engine of some ranks: slabs, links, a block table, and what it was told.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluice_engine_sdk::wire::{
    Attempt, BlockRef, Direction, EngineId, Epoch, Extent, NewHold, NewReceive, Proof, Rank, Rect, Role,
    Subject, ToEngine, Tokens, TransferId, Verb,
};
use sluice_engine_sdk::{Engine as Description, EngineLink, Event, Session, Settings, Slab, incarnation_now};
use sluice_transfer::layout::{Geometry, KvLayout};
use sluice_transfer::memory::BlockTable;

use crate::kv;

/// Far beyond what anything here takes: it ends a test that is stuck, and decides nothing.
pub const FAR: Duration = Duration::from_secs(60);
/// Tokens of a position: both block sizes are multiples of it.
pub const POSITION_TOKENS: u32 = 16;

pub struct Engine {
    pub name: String,
    pub layout: KvLayout,
    pub slabs: Vec<Arc<Slab>>,
    links: Vec<Option<EngineLink>>,
    pub sessions: Vec<Session>,
    pub table: BlockTable,
    /// Named to the host and not given back.
    pub named: BTreeSet<BlockRef>,
    pub told: Vec<ToEngine>,
    receiving: BTreeMap<Attempt, Vec<BlockRef>>,
    /// Whether what is asked is answered truly.
    pub is_honest: bool,
    /// Whether it minds what it is told: one that says anything does not know what it has.
    pub keeps_books: bool,
    /// Ranks that are not attached now.
    pub detached: BTreeSet<usize>,
}

impl Engine {
    pub fn attach(socket: &Path, name: &str, layout: KvLayout) -> Self {
        Self::attach_ranks(socket, name, layout, 0..layout.tp_size as u16)
    }

    /// Only some ranks of it.
    pub fn attach_ranks(socket: &Path, name: &str, layout: KvLayout, ranks: Range<u16>) -> Self {
        let bytes = Geometry::new(layout).unwrap().rank_bytes();
        let mut engine = Self {
            name: name.to_owned(),
            layout,
            slabs: Vec::new(),
            links: Vec::new(),
            sessions: Vec::new(),
            table: BlockTable::new(layout.blocks).unwrap(),
            named: BTreeSet::new(),
            told: Vec::new(),
            receiving: BTreeMap::new(),
            is_honest: true,
            keeps_books: true,
            detached: BTreeSet::new(),
        };
        for (at, rank) in ranks.enumerate() {
            engine.slabs.push(Arc::new(Slab::create(bytes).unwrap()));
            let (link, session) = engine.attach_rank(socket, at, rank);
            engine.links.push(Some(link));
            engine.sessions.push(session);
        }
        engine
    }

    fn attach_rank(&self, socket: &Path, at: usize, rank: u16) -> (EngineLink, Session) {
        let description = Description {
            name: self.name.clone(),
            incarnation: incarnation_now(),
            rank: Rank(rank),
            role: Role::Unified,
            model: "test".to_owned(),
            layout: self.layout,
        };
        let slab = Arc::clone(&self.slabs[at]);
        EngineLink::attach(socket, description, slab, Settings::default()).unwrap()
    }

    /// One rank ends, with a goodbye.
    pub fn drop_rank(&mut self, rank: usize) {
        self.links[rank] = None;
        self.detached.insert(rank);
    }

    /// It is started anew.
    pub fn come_back(&mut self, socket: &Path, rank: usize) {
        let (link, session) = self.attach_rank(socket, rank, rank as u16);
        self.links[rank] = Some(link);
        self.sessions[rank] = session;
        self.detached.remove(&rank);
    }

    pub fn allocate(&mut self, tokens: u32) -> Vec<BlockRef> {
        let mut blocks = Vec::new();
        self.table.allocate(tokens.div_ceil(self.layout.block_tokens), &mut blocks).unwrap();
        blocks
    }

    pub fn free(&mut self, blocks: &[BlockRef]) {
        for block in blocks {
            assert!(!self.named.contains(block), "{block:?} is named to the host");
            self.table.free_block(*block).unwrap();
        }
    }

    pub fn used(&self) -> u32 {
        self.table.count() - self.table.free()
    }

    pub fn hold(&mut self, job: &Job, blocks: &[BlockRef], proofs: Vec<Proof>) {
        self.named.extend(blocks);
        let hold = NewHold {
            id: job.id,
            extent: job.extent(),
            blocks: blocks.to_vec(),
            first_token: 0,
            proofs,
            fill_ms: 60_000,
            ttl_ms: 30_000,
            renewable: true,
            margin_ms: 1_000,
        };
        self.sessions[0].hold(hold).unwrap();
    }

    /// Computes a layer on all ranks, and each rank says so.
    pub fn compute(&self, job: &Job, blocks: &[BlockRef], layer: u32) {
        kv::compute(&self.layout, &self.slabs, (&indexes(blocks), 0), job.sequence(), (0..job.tokens, layer));
        let grid = job.extent().grid(self.layout.layers).unwrap();
        let rect = Rect { first_layer: layer as u16, end_layer: layer as u16 + 1, ..grid.whole() };
        self.sessions.iter().for_each(|rank| rank.ready(job.id, rect).unwrap());
    }

    pub fn filled(&self, job: &Job) {
        self.sessions.iter().for_each(|rank| rank.filled(job.id).unwrap());
    }

    pub fn receive(&mut self, job: &Job, from: &str, blocks: &[BlockRef], proofs: Vec<Proof>) {
        self.receive_as(job, job.attempt(), from, blocks, proofs);
    }

    pub fn receive_as(
        &mut self,
        job: &Job,
        attempt: Attempt,
        from: &str,
        blocks: &[BlockRef],
        proofs: Vec<Proof>,
    ) {
        self.named.extend(blocks);
        self.receiving.insert(attempt, blocks.to_vec());
        let receive = NewReceive {
            attempt,
            source: EngineId::of_name(from),
            verb: job.verb,
            direction: job.direction,
            extent: job.extent(),
            wanted: Tokens { first: 0, end: job.tokens },
            blocks: blocks.to_vec(),
            first_token: 0,
            proofs,
            first_byte_ms: 30_000,
            whole_ms: 60_000,
        };
        self.sessions[0].receive(receive).unwrap();
    }

    /// Bytes of all layers that are not what the source computed, of the first so many tokens.
    pub fn wrong(&self, job: &Job, blocks: &[BlockRef], tokens: u32) -> usize {
        let blocks = indexes(blocks);
        let of =
            |layer| kv::wrong(&self.layout, &self.slabs, (&blocks, 0), job.sequence(), (0..tokens, layer));
        (0..self.layout.layers).map(of).sum()
    }

    /// Hears events of all ranks until `is_it` is told.
    pub fn hear_until(&mut self, mut is_it: impl FnMut(&Self) -> bool) {
        let mut left = 60_000;
        while !is_it(self) {
            assert!(left > 0, "{} waits for what does not come: {:?}", self.name, self.told);
            left -= u32::from(!self.hear_once());
        }
    }

    /// Hears one event of each rank, if there is one: whether there was any.
    pub fn hear_once(&mut self) -> bool {
        let mut any = false;
        for rank in 0..self.links.len() {
            let event = match &self.links[rank] {
                Some(link) => link.poll_event(Duration::from_millis(1)).unwrap(),
                None => None,
            };
            any |= event.is_some();
            if let Some(event) = event {
                self.heard(rank, event);
            }
        }
        any
    }

    fn heard(&mut self, rank: usize, event: Event) {
        match event {
            Event::Host(_) if !self.keeps_books => {}
            Event::GaveUp(_) if !self.keeps_books => {}
            Event::Host(told) => {
                match &told {
                    ToEngine::Freed { blocks } => {
                        for block in blocks {
                            assert!(self.named.remove(block), "{block:?} was not named, or given back twice");
                            self.table.free_block(*block).unwrap();
                        }
                    }
                    // They are the engine's own at once.
                    ToEngine::Refused { subject: Subject::Receive(attempt), .. } => {
                        for block in self.receiving.remove(attempt).unwrap_or_default() {
                            assert!(self.named.remove(&block));
                            self.table.free_block(block).unwrap();
                        }
                    }
                    ToEngine::Confirm { attempt, number, blocks } => {
                        let held = blocks.iter().all(|block| self.table.is_held(*block));
                        self.sessions[0].confirmed(*attempt, *number, held && self.is_honest).unwrap();
                    }
                    _ => {}
                }
                self.told.push(told);
            }
            Event::Detached { .. } => {
                self.detached.insert(rank);
            }
            // Until all ranks' slabs are free of copies the blocks are not.
            Event::HostGone { .. } if rank == 0 => self.all_are_ours(),
            Event::Attached(session) => {
                self.sessions[rank] = session;
                self.detached.remove(&rank);
                if self.detached.is_empty() {
                    self.all_are_ours();
                }
            }
            Event::HostGone { .. } | Event::Waiting(_) => {}
            Event::GaveUp(error) => panic!("{error}"),
        }
    }

    fn all_are_ours(&mut self) {
        for block in std::mem::take(&mut self.named) {
            self.table.free_block(block).unwrap();
        }
    }

    pub fn was_told(&self, event: &ToEngine) -> bool {
        self.told.contains(event)
    }

    /// Whether an attempt has come, if it has ended.
    pub fn outcome(&self, attempt: Attempt) -> Option<bool> {
        self.told.iter().find_map(|event| match event {
            ToEngine::Completed { attempt: of } if *of == attempt => Some(true),
            ToEngine::Failed { attempt: of, .. } if *of == attempt => Some(false),
            ToEngine::Refused { subject: Subject::Receive(of), .. } if *of == attempt => Some(false),
            _ => None,
        })
    }

    /// Waits until the host has taken a hold of this engine in.
    pub fn until_held(&mut self, id: TransferId) {
        self.sessions[0].renew(id).unwrap();
        let is_it =
            |event: &ToEngine| matches!(event, ToEngine::LeaseLeft { id: of, left_ms: 1.. } if *of == id);
        self.hear_until(|engine| engine.told.iter().any(is_it));
    }

    /// What has come is the engine's own.
    pub fn take_over(&mut self, blocks: &[BlockRef]) {
        blocks.iter().for_each(|block| assert!(self.named.remove(block)));
    }
}

pub fn indexes(blocks: &[BlockRef]) -> Vec<u32> {
    blocks.iter().map(|block| block.index).collect()
}

/// One hand-over.
#[derive(Clone, Copy)]
pub struct Job {
    pub id: TransferId,
    pub verb: Verb,
    pub direction: Direction,
    pub tokens: u32,
}

impl Job {
    pub fn new(number: u128, verb: Verb, tokens: u32) -> Self {
        Self { id: TransferId(number), verb, direction: Direction::PrefillToDecode, tokens }
    }

    pub fn attempt(&self) -> Attempt {
        Attempt { id: self.id, epoch: Epoch(1) }
    }

    pub fn extent(&self) -> Extent {
        Extent { first_token: 0, end_token: self.tokens, position_tokens: POSITION_TOKENS }
    }

    /// What the bytes are made from.
    pub fn sequence(&self) -> u64 {
        self.id.0 as u64
    }
}
