//! One block: which use of it is meant, what it is, what cannot be done with it.

use super::blocks::MAX_BLOCKS;

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// Nobody's.
    Free,
    /// Somebody's, and nobody else can write into it.
    Owned,
    /// Somebody's, and so many remote writers may write into it.
    Exposed {
        /// Whose end is not known.
        writers: u32,
    },
    /// Given up, while so many remote writers may still write into it.
    Quarantined {
        /// Whose end is not known.
        writers: u32,
    },
}

/// What giving a block up did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// It can be handed out again.
    Free,
    /// It can once its writers have ended.
    Quarantined,
}

/// Why a block cannot be had or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// Fewer are free.
    #[error("{asked} blocks asked for, {free} of {count} free, {quarantined} in quarantine")]
    Exhausted {
        /// Asked for.
        asked: u32,
        /// Free ones.
        free: u32,
        /// Waiting for the end of a writer.
        quarantined: u32,
        /// All.
        count: u32,
    },
    /// No such block.
    #[error("block {index} of a table of {count}")]
    Unknown {
        /// Asked for.
        index: u32,
        /// There are.
        count: u32,
    },
    /// The block was handed out again since.
    #[error("block {index}: generation {asked} is over, it is at {now}")]
    Stale {
        /// Which.
        index: u32,
        /// The reference's.
        asked: u64,
        /// The block's.
        now: u64,
    },
    /// It was given up already.
    #[error("block {index} of generation {generation} is freed twice")]
    FreedTwice {
        /// Which.
        index: u32,
        /// Of which use.
        generation: u64,
    },
    /// Not possible in this state.
    #[error("block {index} cannot be {action}: it is {state:?}")]
    WrongState {
        /// Which.
        index: u32,
        /// What was asked.
        action: &'static str,
        /// What it is.
        state: BlockState,
    },
    /// More than [`MAX_BLOCKS`].
    #[error("a table of {count} blocks: at most {MAX_BLOCKS}")]
    TooMany {
        /// Asked for.
        count: u32,
    },
}
