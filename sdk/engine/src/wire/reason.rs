//! How holds and transfers end, and why.

use super::bytes::codes;

/// Why a transfer did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Reason {
    /// The engine or the router wanted no more of it.
    #[error("cancelled by its consumer")]
    Cancelled,
    /// A later epoch took its place.
    #[error("superseded by a later epoch")]
    Superseded,
    /// Nothing came in time.
    #[error("no first byte by the deadline")]
    NoFirstByte,
    /// Not all came in time.
    #[error("not complete by the deadline")]
    TooSlow,
    /// The producer's side cannot be reached.
    #[error("the peer is gone")]
    PeerLost,
    /// The endpoint was closed under it.
    #[error("the endpoint was closed")]
    EndpointClosed,
    /// A copy failed.
    #[error("a posted operation failed")]
    Fabric,
    /// Both sides do not describe the same transfer.
    #[error("producer and consumer do not agree on grid, blocks or ranks")]
    Incompatible,
    /// What is left of the lease is less than its margin.
    #[error("too little is left of the lease")]
    LeaseTooShort,
    /// Blocks were no longer what was offered.
    #[error("the blocks were no longer those that were offered")]
    Stale,
    /// The peer said what cannot be.
    #[error("the peer reported what cannot be")]
    BadReport,
    /// The producer knows nothing of it (any more).
    #[error("unknown to the producer")]
    Unknown,
    /// The producing engine is gone.
    #[error("the engine is gone")]
    EngineGone,
    /// The hold ended before the transfer.
    #[error("the hold had ended: {0}")]
    HoldEnded(HoldEnd),
}

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum HoldEnd {
    /// A consumer has it all.
    #[error("it was delivered")]
    Delivered,
    /// Given up by its engine, the router or the consumer.
    #[error("it was released")]
    Released,
    /// Its lease ran out.
    #[error("its lease ran out")]
    Expired,
    /// Its engine was taken for gone.
    #[error("its engine was gone")]
    Lost,
}

/// Why a hold or a transfer was not begun. Its blocks are the engine's own at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Refused {
    /// There are as many as there may be.
    #[error("as many are open as may be: try again when some have ended")]
    Full,
    /// The id or epoch was used before.
    #[error("this id or epoch was used before: take a new one")]
    Used,
    /// It makes no sense.
    #[error("no valid description of a hold or transfer")]
    Invalid,
    /// There is no such engine here, and no way to one.
    #[error("the source engine is not known here")]
    NoSource,
    /// Nothing of what was wanted is proven to be what the holder has.
    #[error("the holder's tokens are not proven equal to these")]
    Unproven,
}

codes!(Reason, "reason":
    1 => Reason::Cancelled, 2 => Reason::Superseded, 3 => Reason::NoFirstByte, 4 => Reason::TooSlow,
    5 => Reason::PeerLost, 6 => Reason::EndpointClosed, 7 => Reason::Fabric, 8 => Reason::Incompatible,
    9 => Reason::LeaseTooShort, 10 => Reason::Stale, 11 => Reason::BadReport, 12 => Reason::Unknown,
    13 => Reason::EngineGone,
    14 => Reason::HoldEnded(HoldEnd::Delivered), 15 => Reason::HoldEnded(HoldEnd::Released),
    16 => Reason::HoldEnded(HoldEnd::Expired), 17 => Reason::HoldEnded(HoldEnd::Lost));
codes!(HoldEnd, "end of a hold":
    1 => HoldEnd::Delivered, 2 => HoldEnd::Released, 3 => HoldEnd::Expired, 4 => HoldEnd::Lost);
codes!(Refused, "refusal": 1 => Refused::Full, 2 => Refused::Used, 3 => Refused::Invalid, 4 => Refused::NoSource,
    5 => Refused::Unproven);
