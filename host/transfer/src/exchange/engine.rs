//! One attached engine.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::command::{AttachError, CommandError};
use super::events::{Detached, Teller};
use super::metrics::Flow;
use super::work::Place;
use crate::layout::{Geometry, KvLayout};
use crate::memory::{BlockTable, Slab};
use crate::protocol::{
    Attempt, BlockRef, Direction, Epoch, Extent, Generations, Peer, Tokens, TransferId, Transfers, Verb,
};

/// What is asked of an engine's books, by the exchange's thread: must not block for long.
pub type Books = Arc<dyn Generations + Send + Sync>;

/// An engine about to be attached, checked.
pub(super) struct Attaching {
    pub peer: Peer,
    pub geometry: Geometry,
    pub slabs: Vec<Arc<Slab>>,
    pub books: Books,
    pub teller: Teller,
}

/// An attached engine, or one that is leaving.
pub(super) struct Engine {
    pub geometry: Geometry,
    pub slabs: Vec<Arc<Slab>>,
    pub books: SharedBooks,
    pub teller: Teller,
    pub transfers: Transfers,
    pub holds: BTreeMap<TransferId, (Extent, Arc<Place>)>,
    pub sinks: BTreeMap<Attempt, Receiving>,
    pub leaving: Option<Detached>,
}

/// What the exchange knows of an attempt, by its consumer.
#[derive(Debug, Clone)]
pub(super) struct Receiving {
    pub from: Peer,
    pub verb: Verb,
    pub direction: Direction,
    pub extent: Extent,
    pub place: Arc<Place>,
}

/// The machines ask by a type that has a size.
#[derive(Clone)]
pub(super) struct SharedBooks(pub Books);

impl Generations for SharedBooks {
    fn is_current(&self, block: BlockRef) -> bool {
        self.0.is_current(block)
    }
}

impl Generations for Mutex<BlockTable> {
    fn is_current(&self, block: BlockRef) -> bool {
        self.lock().unwrap_or_else(PoisonError::into_inner).is_held(block)
    }
}

impl Attaching {
    /// Checks what an engine brings: a slab for each rank, as large as its layout says.
    pub fn new(
        peer: Peer,
        layout: KvLayout,
        slabs: Vec<Arc<Slab>>,
        books: Books,
        teller: Teller,
    ) -> Result<Self, AttachError> {
        let geometry = Geometry::new(layout)?;
        if slabs.len() != layout.tp_size as usize {
            return Err(AttachError::Slabs { slabs: slabs.len(), tp_size: layout.tp_size });
        }
        let least_bytes = geometry.rank_bytes();
        match slabs.iter().enumerate().find(|(_, slab)| slab.bytes() < least_bytes) {
            Some((rank, slab)) => Err(AttachError::TooSmall { rank, bytes: slab.bytes(), least_bytes }),
            None => Ok(Self { peer, geometry, slabs, books, teller }),
        }
    }
}

impl Engine {
    /// Whether blocks of this engine are in its slab and hold these tokens.
    pub fn check(
        &self,
        tokens: Range<u32>,
        blocks: &[BlockRef],
        first_token: u32,
    ) -> Result<(), CommandError> {
        let layout = self.geometry.layout();
        let all_there = blocks.iter().all(|block| block.index < layout.blocks);
        let tokens = Tokens { first: tokens.start, end: tokens.end };
        if !all_there || !Extent::are_held_by(tokens, first_token, blocks.len(), layout.block_tokens) {
            return Err(CommandError::Blocks);
        }
        Ok(())
    }

    /// Forgets what the machines have forgotten: of one transfer, or of all.
    pub fn forget(&mut self, about: Option<TransferId>) {
        let (holds, sinks) = (self.transfers.holds(), self.transfers.sinks());
        match about {
            Some(id) => {
                if !holds.contains_key(&id) {
                    self.holds.remove(&id);
                }
                let all = Attempt { id, epoch: Epoch(0) }..=Attempt { id, epoch: Epoch(u32::MAX) };
                let known: Vec<_> = self.sinks.range(all).map(|(attempt, _)| *attempt).collect();
                for over in known.iter().filter(|attempt| !sinks.contains_key(attempt)) {
                    self.sinks.remove(over);
                }
            }
            None => {
                if self.holds.len() != holds.len() {
                    self.holds.retain(|id, _| holds.contains_key(id));
                }
                if self.sinks.len() != sinks.len() {
                    self.sinks.retain(|attempt, _| sinks.contains_key(attempt));
                }
            }
        }
    }
}

impl Receiving {
    pub fn flow(&self, sink: Peer) -> Flow {
        Flow { source: self.from, sink, verb: self.verb, direction: self.direction }
    }
}

impl fmt::Debug for Attaching {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Attaching").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transfers, leaving, .. } = self;
        out.debug_struct("Engine")
            .field("transfers", transfers)
            .field("leaving", leaving)
            .finish_non_exhaustive()
    }
}
