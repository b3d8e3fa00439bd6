//! What goes into the machines and what comes out of them.

use std::sync::Arc;

use super::message::Message;
use super::names::{Attempt, BlockRef, Direction, Key, Link, Op, Peer, Rank, TransferId, Verb};
use super::names::{Grid, Rect};
use super::names::{HoldEnd, Reason};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Engine: a rank has computed a part of a hold.
    Ready {
        /// Which hold.
        id: TransferId,
        /// Which rank.
        rank: Rank,
        /// Which part.
        rect: Rect,
    },
    /// Engine: the prefill (or turn) is over, all of the hold is computed on all ranks. Its lease begins.
    Filled(TransferId),
    /// Engine or router: nobody will want this hold.
    Release(TransferId),
    /// Engine or router: the consumer wants no more of this attempt.
    Cancel(Attempt),
    /// Router: the prefill has answered, so the first byte must come soon.
    Expect {
        /// Which attempt.
        attempt: Attempt,
        /// Within which time.
        within_ms: u64,
    },
    /// The engine whose owner this is has died or gone.
    EngineGone,
    /// Fabric: a posted operation is over and nothing more of it will land. Said once of each [`Post`], or else the
    /// endpoint is closed.
    Posted {
        /// Which operation.
        op: Op,
        /// How it went.
        outcome: Outcome,
    },
    /// A copy out of staging is done.
    Copied(Op),
    /// A peer said something.
    Message {
        /// Who, by the connection that it came by.
        from: Peer,
        /// What.
        message: Message,
    },
    /// The connection to a peer is gone, or it stands still for too long. The peer may live, and write.
    PeerLost(Peer),
    /// Our endpoint for a peer is closed with its key: nothing that the peer posted by it lands after this, and
    /// nothing that we posted by it touches our memory.
    EndpointClosed {
        /// For whom it was.
        peer: Peer,
        /// Its key.
        key: Key,
    },
    /// A peer whose own instructions did its writes (same host, mapped memory) has ended as a process.
    ProcessGone(Peer),
    /// Time has passed.
    Tick,
}

/// How a posted operation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All its bytes are where they should be, at the target.
    Done,
    /// It failed, or was never posted.
    Failed,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a message, if there is a connection.
    Send {
        /// To whom.
        to: Peer,
        /// What.
        message: Message,
    },
    /// Post a READ or a WRITE.
    Post(Post),
    /// Copy from staging to the blocks, then say [`Event::Copied`].
    CopyOut(Post),
    /// What is queued of this attempt need not be posted; each operation still needs its [`Event::Posted`].
    CancelPosts(Attempt),
    /// Close the endpoint for this peer, then say [`Event::EndpointClosed`]. To be taken once, however often it is said.
    CloseEndpoint(Peer),
    /// Tell the consuming engine: this part is in place, from all ranks.
    Arrived {
        /// Of which attempt.
        attempt: Attempt,
        /// Which part.
        rect: Rect,
    },
    /// Tell the consuming engine: all that it wanted is in place and the blocks are its own.
    Completed(Attempt),
    /// Tell the consuming engine: it will not come. The blocks come back by [`Action::Freed`].
    Failed {
        /// Which attempt.
        attempt: Attempt,
        /// Why.
        reason: Reason,
    },
    /// These blocks may still be written to: nobody may have them yet.
    Quarantined {
        /// Of which attempt.
        attempt: Attempt,
        /// Which.
        blocks: Arc<[BlockRef]>,
    },
    /// These may be given to somebody else, under a new generation.
    Freed {
        /// What they are.
        place: Place,
        /// Which.
        blocks: Arc<[BlockRef]>,
    },
    /// Tell the producing engine how its hold ended: once for each hold.
    HoldEnded {
        /// Which.
        id: TransferId,
        /// How.
        end: HoldEnd,
    },
    /// A hold elsewhere will last so long; 0 if it is over. Said of an offer and of each heartbeat's answer, so that
    /// the next [`super::Lease::Renew`] can be sent in time.
    LeaseLeft {
        /// Which hold.
        id: TransferId,
        /// How long, from when the holder said so.
        left_ms: u64,
    },
}

/// What freed blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// KV blocks of the engine.
    Blocks,
    /// Slots of the staging ring.
    Staging,
}

/// One operation: these cells, between these blocks. The layouts of both sides say which bytes that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// Its name.
    pub op: Op,
    /// READ or WRITE.
    pub verb: Verb,
    /// The other side.
    pub peer: Peer,
    /// The consumer's endpoint for the producer.
    pub key: Key,
    /// Between which ranks.
    pub link: Link,
    /// Which cells.
    pub rect: Rect,
    /// Where they are.
    pub source: Arc<[BlockRef]>,
    /// Where they go.
    pub sink: Arc<[BlockRef]>,
}

/// Blocks that are to be kept for a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewHold {
    /// The transfer they are for.
    pub id: TransferId,
    /// The cells.
    pub grid: Grid,
    /// The blocks.
    pub blocks: Arc<[BlockRef]>,
    /// The ranks of this process.
    pub ranks: Vec<Rank>,
    /// How long the prefill may take.
    pub fill_ms: u64,
    /// How long the blocks are kept once it is over.
    pub ttl_ms: u64,
    /// Whether a heartbeat begins that time anew.
    pub renewable: bool,
    /// With less than this left, no reader begins.
    pub margin_ms: u64,
}

/// Blocks that are to be filled by a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSink {
    /// Which transfer, at which epoch.
    pub attempt: Attempt,
    /// Who moves the bytes.
    pub verb: Verb,
    /// Which way they go.
    pub direction: Direction,
    /// The cells, as their holder counts them.
    pub grid: Grid,
    /// Which of them are to come: some positions, in all layers.
    pub wanted: Rect,
    /// Where those are to be in the end.
    pub blocks: Arc<[BlockRef]>,
    /// Where writes land first, if not there: slots, one for each block.
    pub staging: Option<Arc<[BlockRef]>>,
    /// The producing processes.
    pub feeds: Vec<Feed>,
    /// How long the first byte may take.
    pub first_byte_ms: u64,
    /// How long all may take.
    pub whole_ms: u64,
}

/// One producing process of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Which.
    pub peer: Peer,
    /// Our endpoint for it.
    pub key: Key,
    /// What it feeds. Every link expects all that is wanted.
    pub links: Vec<Link>,
}

/// Which use of its blocks an engine's memory is in.
pub trait Generations {
    /// Whether the block is still in the use that `block` names.
    fn is_current(&self, block: BlockRef) -> bool;
}
