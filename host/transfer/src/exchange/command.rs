//! What an exchange is asked to do, and why it does not.

use std::sync::Arc;

use sluice_engine_sdk::wire;

use super::answer::Reply;
use super::engine::Attaching;
use super::events::Detached;
use super::limits::{MAX_COMMANDS, MAX_ENGINES};
use crate::fabric::OpenError;
use crate::layout::{LayoutError, Mismatch};
use crate::protocol::Extent;
use crate::protocol::limits::MAX_LINKS;
use crate::protocol::{
    Attempt, BlockRef, Direction, Lease, Peer, Rank, Rect, Refused, RenewRefused, Tokens, TransferId, Verb,
};

/// Blocks of an engine that are to be kept for a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The transfer they are for.
    pub id: TransferId,
    /// Its tokens.
    pub extent: Extent,
    /// The blocks, in the sequence's order.
    pub blocks: Arc<[BlockRef]>,
    /// The sequence's token that the first of them begins with.
    pub first_token: u32,
    /// How long the prefill may take.
    pub fill_ms: u64,
    /// How long the blocks are kept once it is over.
    pub ttl_ms: u64,
    /// Whether a heartbeat begins that time anew.
    pub renewable: bool,
    /// With less than this left, no reader begins.
    pub margin_ms: u64,
}

/// Blocks of an engine that are to be filled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receive {
    /// Which transfer, at which epoch.
    pub attempt: Attempt,
    /// Whose hold it is.
    pub from: Peer,
    /// Who moves the bytes.
    pub verb: Verb,
    /// Which way they go: a label.
    pub direction: Direction,
    /// The transfer's tokens, as its holder names them.
    pub extent: Extent,
    /// Which of them are to come. Whole positions do, so also tokens beside these that share one with them.
    pub wanted: Tokens,
    /// The blocks of what comes, in the sequence's order.
    pub blocks: Arc<[BlockRef]>,
    /// The sequence's token that the first of them begins with.
    pub first_token: u32,
    /// How long the first byte may take.
    pub first_byte_ms: u64,
    /// How long all may take.
    pub whole_ms: u64,
}

/// A command that was not taken. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// Back-pressure: try again later.
    #[error("{MAX_COMMANDS} commands wait already, the limit: try again later")]
    Full,
    /// There is nobody to obey it.
    #[error("the exchange has stopped: attach to the next one")]
    Stopped,
}

/// Why an engine is not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// This life of it is attached.
    #[error("this life of the engine is attached already, or not let go of yet")]
    Attached,
    /// A later life of it is attached.
    #[error("incarnation {later} of this engine is attached: this one is over")]
    Older {
        /// The attached one.
        later: u64,
    },
    /// More than [`MAX_ENGINES`].
    #[error("{MAX_ENGINES} engines are attached, the limit")]
    TooMany,
    /// What it declares cannot be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Not one slab for each rank.
    #[error("{slabs} slabs for {tp_size} ranks: attach one slab for each")]
    Slabs {
        /// Given.
        slabs: usize,
        /// Declared.
        tp_size: u32,
    },
    /// A slab is smaller than declared.
    #[error("the slab of rank {rank} has {bytes} bytes, its layout needs {least_bytes}")]
    TooSmall {
        /// Whose.
        rank: usize,
        /// It has.
        bytes: u64,
        /// It needs.
        least_bytes: u64,
    },
    /// The queue.
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
}

/// Why a hold, a transfer or a heartbeat did not begin. Nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No such life of an engine.
    #[error("engine {:032x}, incarnation {}, is not attached (any more)", .0.engine.0, .0.incarnation)]
    NotAttached(Peer),
    /// An engine cannot receive from itself.
    #[error("source and sink are the same engine")]
    SameEngine,
    /// The extent is empty or too large, or nothing of it is wanted.
    #[error(
        "no valid extent {0:?} (see the bounds of a grid in `protocol::limits`), or none of its tokens is wanted"
    )]
    Extent(Extent),
    /// Blocks that the engine does not have, or too few.
    #[error("the blocks do not hold all tokens that are kept or wanted, or are not all in the slab")]
    Blocks,
    /// Layouts that cannot exchange KV.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// More pairs of ranks than a transfer may have.
    #[error("{links} pairs of ranks feed each other, at most {MAX_LINKS} may: bring tp sizes closer")]
    Links {
        /// There would be.
        links: usize,
    },
    /// The endpoint between the two is being closed.
    #[error("the endpoint to this peer is being closed: try again in some milliseconds")]
    Closing,
    /// No endpoint for the pair.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The protocol's bounds.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A heartbeat.
    #[error(transparent)]
    Renew(#[from] RenewRefused),
}

impl CommandError {
    /// As an engine is told it.
    #[must_use]
    pub fn for_engine(&self) -> wire::Refused {
        match self {
            Self::NotAttached(_) | Self::SameEngine => wire::Refused::NoSource,
            Self::Closing | Self::Open(_) | Self::Refused(Refused::Full(_)) => wire::Refused::Full,
            Self::Refused(Refused::Used) => wire::Refused::Used,
            Self::Extent(_)
            | Self::Blocks
            | Self::Mismatch(_)
            | Self::Links { .. }
            | Self::Refused(Refused::Invalid)
            | Self::Renew(_) => wire::Refused::Invalid,
        }
    }
}

/// The outcome of a command.
pub type Outcome<T> = Result<T, CommandError>;

/// What an engine itself says. If it cannot be it is told so, by
/// [`Refused`](sluice_engine_sdk::wire::ToEngine::Refused).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Blocks of its own are to be kept.
    Hold(Hold),
    /// Blocks of its own are to be filled. Waits while the endpoint between the two is being closed.
    Receive(Receive),
    /// The answer to [`Confirm`](sluice_engine_sdk::wire::ToEngine::Confirm).
    Confirmed {
        /// Of which attempt.
        attempt: Attempt,
        /// Which READ.
        number: u32,
        /// Whether all blocks were still in the use that was asked about.
        held: bool,
    },
    /// About a hold, its own or another engine's.
    Lease {
        /// Whose.
        holder: Peer,
        /// Which.
        id: TransferId,
        /// To be renewed, or not wanted any more.
        lease: Lease,
    },
}

/// Who is told how it went.
#[derive(Debug)]
pub(super) enum Asker<T> {
    Caller(Reply<Outcome<T>>),
    Engine,
}

/// What is in the queue.
#[derive(Debug)]
pub(super) enum Command {
    Attach(Box<Attaching>),
    Detach(Peer, Detached),
    Hold(Peer, Hold, Asker<()>),
    Receive(Peer, Receive, Asker<()>),
    Renew(Peer, TransferId, Option<u64>, Reply<Outcome<u64>>),
    Told(Peer, Told),
}

/// What needs no answer: its effects are events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Ready { id: TransferId, rank: Rank, rect: Rect },
    Filled(TransferId),
    Release(TransferId),
    Cancel(Attempt),
    Expect { attempt: Attempt, within_ms: u64 },
    Confirmed { attempt: Attempt, number: u32, held: bool },
    Lease { from: Peer, id: TransferId, lease: Lease },
}
