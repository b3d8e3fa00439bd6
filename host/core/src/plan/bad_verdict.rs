//! What can be wrong with an answer.

use thiserror::Error;

use super::{
    HEARTBEAT_MS_MIN, HINTS_BYTES_MAX, HINTS_MAX, HOLD_MS_MAX, REASON_BYTES_MAX, REJECTION_MESSAGE_BYTES_MAX,
};
use crate::facts::Row;

/// An answer that cannot be executed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadVerdict {
    /// A row beyond the table.
    #[error(
        "{part} row {row} is not in the table, which has {rows} rows; answer with a row of this call's table"
    )]
    NoSuchRow {
        /// `unified`, `prefill` or `decode`.
        part: &'static str,
        /// What the policy answered.
        row: Row,
        /// Rows of the table.
        rows: usize,
    },
    /// A worker of another role.
    #[error("{part} row {row} is a {role} worker, which cannot do that; choose {cure}")]
    WrongRole {
        /// `unified`, `prefill` or `decode`.
        part: &'static str,
        /// What the policy answered.
        row: Row,
        /// What the worker is.
        role: &'static str,
        /// Which workers are eligible.
        cure: &'static str,
    },
    /// A worker that takes no new work.
    #[error("{part} row {row} is draining and takes no new work; skip rows with the draining ability (8)")]
    Draining {
        /// `unified`, `prefill` or `decode`.
        part: &'static str,
        /// What the policy answered.
        row: Row,
    },
    /// A pair whose KV layouts differ.
    #[error(
        "prefill row {prefill} has KV layout group {prefill_group} and decode row {decode} has {decode_group}; \
         choose two rows of one group"
    )]
    GroupsDiffer {
        /// Who should prefill.
        prefill: Row,
        /// Its group.
        prefill_group: u16,
        /// Who should decode.
        decode: Row,
        /// Its group.
        decode_group: u16,
    },
    /// Push, but nowhere to push to.
    #[error(
        "push from prefill row {prefill} names no decode row; a push needs decode `now`, not `after-prefill`"
    )]
    PushWithoutDecode {
        /// Who should prefill.
        prefill: Row,
    },
    /// A status that is no refusal.
    #[error("a rejection with HTTP status {status}; use 400 to 599")]
    RejectionStatus {
        /// What the policy answered.
        status: u16,
    },
    /// A message that does not fit an error body.
    #[error("a rejection's message of {bytes} bytes; keep it within {REJECTION_MESSAGE_BYTES_MAX}")]
    RejectionMessage {
        /// Its length.
        bytes: usize,
    },
    /// A reason that does not fit a header.
    #[error("a reason of {bytes} bytes; keep it within {REASON_BYTES_MAX}")]
    Reason {
        /// Its length.
        bytes: usize,
    },
    /// More hints than an engine has knobs.
    #[error("{count} hints of {bytes} bytes together; keep to {HINTS_MAX} hints and {HINTS_BYTES_MAX} bytes")]
    Hints {
        /// How many.
        count: usize,
        /// Keys and values together.
        bytes: usize,
    },
    /// A hold of no time, or of more than a day.
    #[error("a hold of {ms} ms; keep within 1 to {HOLD_MS_MAX} ms, and answer `release` to keep nothing")]
    HoldTime {
        /// What the policy answered.
        ms: u32,
    },
    /// A heartbeat that comes too often, or after the hold ended.
    #[error(
        "a heartbeat each {heartbeat_ms} ms of a hold of {ttl_ms} ms; at least {HEARTBEAT_MS_MIN} ms and less than the hold"
    )]
    HeartbeatInterval {
        /// What the policy answered.
        heartbeat_ms: u32,
        /// The hold it is for.
        ttl_ms: u32,
    },
}

impl BadVerdict {
    /// Whether it is about which worker was chosen, rather than about a number or a text.
    pub fn is_of_a_row(&self) -> bool {
        match self {
            Self::NoSuchRow { .. }
            | Self::WrongRole { .. }
            | Self::Draining { .. }
            | Self::GroupsDiffer { .. }
            | Self::PushWithoutDecode { .. } => true,
            Self::RejectionStatus { .. }
            | Self::RejectionMessage { .. }
            | Self::Reason { .. }
            | Self::Hints { .. }
            | Self::HoldTime { .. }
            | Self::HeartbeatInterval { .. } => false,
        }
    }

    /// A short name for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoSuchRow { .. } => "no-such-row",
            Self::WrongRole { .. } => "wrong-role",
            Self::Draining { .. } => "draining",
            Self::GroupsDiffer { .. } => "groups-differ",
            Self::PushWithoutDecode { .. } => "push-without-decode",
            Self::RejectionStatus { .. } => "rejection-status",
            Self::RejectionMessage { .. } => "rejection-message",
            Self::Reason { .. } => "reason",
            Self::Hints { .. } => "hints",
            Self::HoldTime { .. } => "hold-time",
            Self::HeartbeatInterval { .. } => "heartbeat-interval",
        }
    }
}
