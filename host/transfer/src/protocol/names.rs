//! Who and what a transfer is about.

use std::fmt;

/// One hand-over of KV blocks, as the router named it. An id is used for one prefill (or one turn) and never again:
/// a repeated prefill has a new id, a repeated transfer of the same blocks a new [`Epoch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u128);

/// Which attempt at a transfer. Only the consumer raises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

/// A transfer at one epoch: what messages and posted operations are keyed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt {
    /// Which transfer.
    pub id: TransferId,
    /// Which attempt at it.
    pub epoch: Epoch,
}

/// An engine, whatever its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u128);

/// One life of an engine's process (of one of its processes, where its ranks live in several). A restart is another
/// peer: nothing that it says speaks for the writes of the process before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// Whose process.
    pub engine: EngineId,
    /// Which life of it.
    pub incarnation: u64,
}

/// The endpoint and memory key by which one peer may write here. Closing it ends that peer's writes and no other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// A tensor-parallel rank of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u16);

/// From which rank of the producer to which rank of the consumer bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// The producer's rank.
    pub from: Rank,
    /// The consumer's rank.
    pub to: Rank,
}

/// A KV block as it was when somebody got it: the same index in a later use has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRef {
    /// Which block of the engine's slab.
    pub index: u32,
    /// Which use of it.
    pub generation: u64,
}

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// The consumer reads (pull).
    Read,
    /// The producer writes (push).
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

/// One operation posted to a fabric, or one copy out of staging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    /// For which attempt.
    pub attempt: Attempt,
    /// Its number in the attempt, from 0, on the side that posted it.
    pub number: u32,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}/{}", self.id.0, self.epoch.0)
    }
}
