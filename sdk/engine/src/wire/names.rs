//! Who and what a message is about.

use std::fmt;

use super::bytes::{codes, members};

/// One hand-over of KV blocks, as the router named it. An id is used for one prefill (or one turn) and never again:
/// a repeated prefill has a new id, a repeated transfer of the same blocks a new [`Epoch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u128);

/// Which attempt at a transfer. Only the consumer raises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

/// A transfer at one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt {
    /// Which transfer.
    pub id: TransferId,
    /// Which attempt at it.
    pub epoch: Epoch,
}

/// An engine, whatever its process. Its tensor-parallel ranks share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u128);

/// A tensor-parallel rank of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u16);

/// A KV block in one use of it: the same index in a later use has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRef {
    /// Which block of the slab.
    pub index: u32,
    /// Which use of it.
    pub generation: u64,
}

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// The consumer's side reads (pull).
    Read,
    /// The producer's side writes (push).
    Write,
}

/// Which way KV goes. A label for metrics: no decision depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From prefill to decode, after (or during) a prefill.
    PrefillToDecode,
    /// From decode to prefill, to be used again in the next turn.
    DecodeToPrefill,
}

/// The cells of a transfer: one for each block position and layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grid {
    /// Block positions.
    pub positions: u32,
    /// Layers.
    pub layers: u16,
}

/// A range of positions in a range of layers; both half open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rect {
    /// First position.
    pub first: u32,
    /// Position after the last.
    pub end: u32,
    /// First layer.
    pub first_layer: u16,
    /// Layer after the last.
    pub end_layer: u16,
}

impl Grid {
    /// All of it.
    #[must_use]
    pub fn whole(self) -> Rect {
        Rect { first: 0, end: self.positions, first_layer: 0, end_layer: self.layers }
    }
}

impl Rect {
    /// Whether there is any cell in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.first >= self.end || self.first_layer >= self.end_layer
    }
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}/{}", self.id.0, self.epoch.0)
    }
}

members!(TransferId { 0 });
members!(Epoch { 0 });
members!(Attempt { id, epoch });
members!(EngineId { 0 });
members!(Rank { 0 });
members!(BlockRef { index, generation });
members!(Grid { positions, layers });
members!(Rect { first, end, first_layer, end_layer });
codes!(Verb, "verb": 1 => Verb::Read, 2 => Verb::Write);
codes!(Direction, "direction": 1 => Direction::PrefillToDecode, 2 => Direction::DecodeToPrefill);
