//! What the two sides of a transfer say to each other.

use std::sync::Arc;

use super::names::{Attempt, BlockRef, Direction, Grid, Key, Link, Rank, Reason, Rect, TransferId, Verb};

/// A message between the owners of two engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// About one attempt at a transfer.
    Transfer(Attempt, Body),
    /// About a hold, whoever reads or reads not.
    Hold(TransferId, Lease),
}

/// About an attempt. The consumer speaks first and asks again; the producer answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Consumer: move these to me, or let me read them. Saying it again changes nothing.
    Register(Registration),
    /// Consumer, of a registration that was heard: say again how far it is.
    Ask,
    /// Consumer: no more of this. Answered by [`Body::Ended`] once no write is under way.
    Abort(Reason),
    /// Consumer: operation `number` has read `rect` to its end; were the blocks still what they were?
    Confirm {
        /// The READ's number in its attempt.
        number: u32,
        /// What it read.
        rect: Rect,
    },
    /// Consumer: all is read and confirmed.
    Done,
    /// Producer: registration heard.
    Accepted,
    /// Producer: read from these blocks, within this time.
    Offer {
        /// The producer's blocks.
        blocks: Arc<[BlockRef]>,
        /// How long they are sure to be held, less a margin.
        left_ms: u64,
    },
    /// Producer: this is computed and may be read.
    Ready {
        /// On which rank.
        rank: Rank,
        /// Which part.
        rect: Rect,
    },
    /// Producer: this is in place in the consumer's memory.
    Written {
        /// From which rank to which.
        link: Link,
        /// Which part.
        rect: Rect,
    },
    /// Producer: the answer to [`Body::Confirm`].
    Confirmed {
        /// Which READ.
        number: u32,
        /// Whether all blocks had their generations after it.
        held: bool,
    },
    /// Producer: it is over. The terminal report, sent after the last completion.
    Ended(End),
}

/// About a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// To the holder: hold on.
    Renew,
    /// To the holder: nobody will read this.
    Release,
    /// From the holder: how long it still holds; 0 if not (any more).
    Left {
        /// From when it was sent.
        left_ms: u64,
    },
}

/// What a consumer asks of one producing process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Who moves the bytes.
    pub verb: Verb,
    /// Which way they go.
    pub direction: Direction,
    /// The cells of the hold.
    pub grid: Grid,
    /// Which of them are to be moved: some positions, in all layers. Nobody reports any other.
    pub wanted: Rect,
    /// By which endpoint of the consumer.
    pub key: Key,
    /// Between which ranks.
    pub links: Vec<Link>,
    /// Where writes land, block by block; empty for a READ.
    pub landing: Arc<[BlockRef]>,
    /// After this the producer need not begin or go on.
    pub left_ms: u64,
}

/// How an attempt ended, by the producer's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every cell that was wanted of every link is in place (or was read and confirmed).
    Complete {
        /// How many cells that were, over all links of this producer.
        cells: u64,
    },
    /// It will not be completed; nothing is under way any more.
    Aborted(Reason),
    /// It will not be completed, and something may still land: only the consumer's closing of the endpoint helps.
    Unsure(Reason),
}
