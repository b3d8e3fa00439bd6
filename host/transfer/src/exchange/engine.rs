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
    Attempt, BlockRef, Body, Direction, Epoch, Event, Extent, Generations, Message, Peer, Source, Tokens,
    TransferId, Transfers, Verb,
};

/// Where it is known which use an engine's blocks are in.
#[derive(Clone)]
pub enum Books {
    /// Here: asked by the exchange's thread, so it must not block for long.
    Here(Arc<dyn Generations + Send + Sync>),
    /// With the engine: it is told [`sluice_engine_sdk::wire::ToEngine::Confirm`], and [`super::Said::Confirmed`] is its
    /// answer.
    Asked,
}

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
    pub books: Books,
    /// What consumers ask of this engine's blocks, until the engine has answered.
    pub asked: BTreeMap<(Attempt, u32), Asked>,
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

/// What a consumer wants to know of an engine that must be asked, and since when it was.
pub(super) struct Asked {
    pub from: Peer,
    pub message: Message,
    pub at_ms: u64,
}

/// What an engine is to be asked: whether a consumer has read what was offered.
pub(super) struct Question {
    pub attempt: Attempt,
    pub number: u32,
    pub blocks: Vec<BlockRef>,
}

/// One answer for all blocks that are asked about at once.
pub(super) struct Answered(pub bool);

impl Generations for Answered {
    fn is_current(&self, _: BlockRef) -> bool {
        self.0
    }
}

impl Generations for Books {
    /// An engine that must be asked is asked before the machines are.
    fn is_current(&self, block: BlockRef) -> bool {
        match self {
            Self::Here(books) => books.is_current(block),
            Self::Asked => false,
        }
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

    /// Whether this event can be handled only once the engine has been asked, and what.
    pub fn question(&self, event: &Event) -> Option<Question> {
        let Event::Message { message: Message::Transfer(attempt, Body::Confirm { number, rect }), .. } =
            event
        else {
            return None;
        };
        let is_asked = matches!(self.books, Books::Asked) && self.leaving.is_none();
        let is_read = |attempt| self.transfers.sources().get(attempt).is_some_and(Source::is_read_from);
        // Of what is over, and of what cannot be, the machines know the answer.
        let hold = self.transfers.holds().get(&attempt.id).filter(|_| is_asked && is_read(attempt))?;
        let (extent, place) = self.holds.get(&attempt.id).filter(|_| rect.fits(hold.spec().grid))?;
        let read = place.blocks_of(extent.tokens(*rect), self.geometry.layout().block_tokens);
        let blocks = hold.spec().blocks.get(read)?.to_vec();
        Some(Question { attempt: *attempt, number: *number, blocks })
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
                let asked =
                    (Attempt { id, epoch: Epoch(0) }, 0)..=(Attempt { id, epoch: Epoch(u32::MAX) }, u32::MAX);
                let asked: Vec<_> = self.asked.range(asked).map(|(which, _)| *which).collect();
                let sources = self.transfers.sources();
                for over in asked.iter().filter(|(attempt, _)| !sources.contains_key(attempt)) {
                    self.asked.remove(over);
                }
                for over in known.iter().filter(|attempt| !sinks.contains_key(attempt)) {
                    self.sinks.remove(over);
                }
            }
            None => {
                self.asked.retain(|(attempt, _), _| self.transfers.sources().contains_key(attempt));
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
