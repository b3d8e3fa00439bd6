//! What an engine says to its host.

use super::bytes::{kinds, members};
use super::names::{Attempt, BlockRef, Direction, EngineId, Extent, Rect, Tokens, TransferId, Verb};
use super::proof::Proof;
use super::reason::Reason;

/// From the engine to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHost {
    /// Producer: these blocks are about to be computed and are kept for a consumer. From here to
    /// [`super::ToEngine::HoldEnded`] and then [`super::ToEngine::Freed`] they are not the engine's to reuse.
    Hold {
        /// What and how long.
        hold: NewHold,
    },
    /// Producer: this part of a hold is computed and lies in the slab. Progressive: as often as wanted, by blocks, by
    /// layers, or both.
    Ready {
        /// Which hold.
        id: TransferId,
        /// Which part.
        rect: Rect,
    },
    /// Producer: all of a hold is computed. Its lease begins.
    Filled {
        /// Which hold.
        id: TransferId,
    },
    /// Heartbeat: the hold is still wanted, so its lease begins anew. Also from a consumer that will read later.
    Renew {
        /// Which hold.
        id: TransferId,
    },
    /// Nobody will read this hold.
    Release {
        /// Which hold.
        id: TransferId,
    },
    /// Consumer: bring these. The blocks are not the engine's to use until they are told to have come, and not to
    /// reuse until they are told free.
    Receive {
        /// What, from whom, and how long it may take.
        receive: NewReceive,
    },
    /// Consumer: no more of this. Answered by a failure, and by the blocks once nothing can land in them.
    Abort {
        /// Which attempt.
        attempt: Attempt,
        /// Why.
        reason: Reason,
    },
    /// The answer to [`super::ToEngine::Confirm`].
    Confirmed {
        /// Of which attempt.
        attempt: Attempt,
        /// Which READ.
        number: u32,
        /// Whether every block was still in the use that was asked about.
        held: bool,
    },
}

/// Blocks that are to be kept for a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewHold {
    /// The transfer they are for.
    pub id: TransferId,
    /// Its tokens.
    pub extent: Extent,
    /// The blocks, in the order of the tokens.
    pub blocks: Vec<BlockRef>,
    /// The sequence's token that the first of them begins with.
    pub first_token: u32,
    /// What the tokens are, from the sequence's first one on, so that a later prompt that begins with them may have
    /// them; empty if that is not wanted.
    pub proofs: Vec<Proof>,
    /// How long the prefill may take, in milliseconds.
    pub fill_ms: u64,
    /// How long the blocks are kept once it is over, in milliseconds.
    pub ttl_ms: u64,
    /// Whether a heartbeat begins that time anew.
    pub renewable: bool,
    /// With less than this left, no reader begins, in milliseconds.
    pub margin_ms: u64,
}

/// Blocks that are to be filled by a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewReceive {
    /// Which transfer, at which epoch.
    pub attempt: Attempt,
    /// From which engine.
    pub source: EngineId,
    /// Who moves the bytes.
    pub verb: Verb,
    /// Which way they go.
    pub direction: Direction,
    /// The transfer's tokens, as its holder names them.
    pub extent: Extent,
    /// Which of them are to come: those that are cached here need not. Whole positions come, so also tokens beside
    /// these that lie in a position with one of them.
    pub wanted: Tokens,
    /// Where they are to be, in the order of the tokens.
    pub blocks: Vec<BlockRef>,
    /// The sequence's token that the first of them begins with.
    pub first_token: u32,
    /// What the tokens here are, from the sequence's first one on. If there are any, here or with
    /// the hold, only what the holder's proofs show to be equal comes: see [`super::ToEngine::Cut`].
    pub proofs: Vec<Proof>,
    /// How long the first byte may take, in milliseconds.
    pub first_byte_ms: u64,
    /// How long all may take, in milliseconds.
    pub whole_ms: u64,
}

members!(NewHold { id, extent, blocks, first_token, proofs, fill_ms, ttl_ms, renewable, margin_ms });
members!(NewReceive {
    attempt,
    source,
    verb,
    direction,
    extent,
    wanted,
    blocks,
    first_token,
    proofs,
    first_byte_ms,
    whole_ms
});
kinds!(ToHost, "kind of message to a host":
    16 => Hold { hold },
    17 => Ready { id, rect },
    18 => Filled { id },
    19 => Renew { id },
    20 => Release { id },
    21 => Receive { receive },
    22 => Abort { attempt, reason },
    23 => Confirmed { attempt, number, held },
);
