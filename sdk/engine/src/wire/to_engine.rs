//! What a host says to an engine.

use super::bytes::{Cursor, DecodeError, Wire, Writer, kinds};
use super::names::{Attempt, BlockRef, Rect, TransferId};
use super::reason::{HoldEnd, Reason, Refused};

/// From the host to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToEngine {
    /// A hold or transfer was not begun.
    Refused {
        /// Which.
        subject: Subject,
        /// Why.
        why: Refused,
    },
    /// Consumer: this part is in place. Progressive.
    Arrived {
        /// Of which attempt.
        attempt: Attempt,
        /// Which part.
        rect: Rect,
    },
    /// Consumer: all is in place and the blocks are the engine's own.
    Completed {
        /// Which attempt.
        attempt: Attempt,
    },
    /// Consumer: it will not come; compute it. The blocks come back by [`ToEngine::Freed`].
    Failed {
        /// Which attempt.
        attempt: Attempt,
        /// Why.
        reason: Reason,
    },
    /// Consumer: these may still be written to, so nobody may have them yet.
    Quarantined {
        /// Of which attempt.
        attempt: Attempt,
        /// Which.
        blocks: Vec<BlockRef>,
    },
    /// These may be given to somebody else, under a new generation.
    Freed {
        /// Which.
        blocks: Vec<BlockRef>,
    },
    /// Producer: a hold is over. Said once of each hold.
    HoldEnded {
        /// Which hold.
        id: TransferId,
        /// How.
        end: HoldEnd,
    },
    /// How long a hold elsewhere will last, from when this was sent; 0 if it is over.
    LeaseLeft {
        /// Which hold.
        id: TransferId,
        /// How long, in milliseconds.
        left_ms: u64,
    },
    /// Producer: a READ of these is over. Were they all in this use until now?
    Confirm {
        /// Of which attempt.
        attempt: Attempt,
        /// Which READ of it.
        number: u32,
        /// The blocks that were read.
        blocks: Vec<BlockRef>,
    },
    /// Consumer: only the tokens before `end_token` come, since the holder's are proven equal so far. Said before
    /// anything of the attempt arrives, and only if less comes than was wanted. The other blocks are left alone.
    Cut {
        /// Which attempt.
        attempt: Attempt,
        /// The token after the last that comes.
        end_token: u32,
    },
}

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A hold.
    Hold(TransferId),
    /// A transfer to here.
    Receive(Attempt),
}

impl Wire for Subject {
    fn put(&self, out: &mut Writer) {
        match self {
            Self::Hold(id) => {
                1_u8.put(out);
                id.put(out);
            }
            Self::Receive(attempt) => {
                2_u8.put(out);
                attempt.put(out);
            }
        }
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        match u8::take(from)? {
            1 => TransferId::take(from).map(Self::Hold),
            2 => Attempt::take(from).map(Self::Receive),
            code => Err(DecodeError::Unknown { what: "subject", code }),
        }
    }
}

kinds!(ToEngine, "kind of message to an engine":
    64 => Refused { subject, why },
    65 => Arrived { attempt, rect },
    66 => Completed { attempt },
    67 => Failed { attempt, reason },
    68 => Quarantined { attempt, blocks },
    69 => Freed { blocks },
    70 => HoldEnded { id, end },
    71 => LeaseLeft { id, left_ms },
    72 => Confirm { attempt, number, blocks },
    73 => Cut { attempt, end_token },
);
