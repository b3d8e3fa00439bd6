//! Who and what a transfer is about.

pub use sluice_engine_sdk::wire::{
    Attempt, BlockRef, Direction, EngineId, Epoch, Extent, Grid, HoldEnd, Rank, Reason, Rect, Tokens,
    TransferId, Verb,
};

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

/// From which rank of the producer to which rank of the consumer bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// The producer's rank.
    pub from: Rank,
    /// The consumer's rank.
    pub to: Rank,
}

/// One operation posted to a fabric, or one copy out of staging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    /// For which attempt.
    pub attempt: Attempt,
    /// Its number in the attempt, from 0, on the side that posted it.
    pub number: u32,
}
