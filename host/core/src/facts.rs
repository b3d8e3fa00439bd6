//! What a policy sees: one request, its session, and the workers that could serve it, as columns.
//!
//! The shapes mirror `sdk/policy/wit/policy.wit` field by field; the policy host lowers them by reference.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A position in this call's worker table. Never an id: rows change between calls.
pub type Row = u32;

/// What a worker is for. The numbers are the WIT's `workers.role`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Role {
    /// Prefills and decodes.
    Unified = 0,
    /// Prefills, and hands its KV blocks to a decode worker.
    Prefill = 1,
    /// Decodes from KV blocks that a prefill worker made.
    Decode = 2,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Unified, Self::Prefill, Self::Decode];

    /// The role for a number of the WIT's `role` column.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|role| *role as u8 == number)
    }

    /// The name used in configuration, metrics and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unified => "unified",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Bits of the WIT's `workers.abilities`.
pub mod ability {
    /// Takes part in pull transfers.
    pub const PULL: u16 = 1;
    /// Takes part in push transfers.
    pub const PUSH: u16 = 2;
    /// Can give KV blocks back to prefill.
    pub const GIVES_BACK: u16 = 4;
    /// Takes no new work; seen only as the holder of a session.
    pub const DRAINING: u16 = 8;
    /// A decode worker that can also prefill, so that it can serve a request alone.
    pub const CAN_PREFILL: u16 = 16;
    /// Its holds can be renewed.
    pub const HOLDS_RENEWABLE: u16 = 32;
    /// Its holds can be released early.
    pub const HOLDS_RELEASABLE: u16 = 64;
    /// `cached-tokens` comes from KV events.
    pub const CACHE_FROM_EVENTS: u16 = 128;
    /// `cached-tokens` is a prediction.
    pub const CACHE_PREDICTED: u16 = 256;
    /// Load figures are stale.
    pub const STALE: u16 = 512;
}

/// What the fleet knows of its workers between scrapes; one snapshot is shared by all requests of a model.
/// All columns have one length.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FleetColumns {
    /// Stable across calls and restarts.
    pub id: Vec<u64>,
    /// See [`Role`].
    pub role: Vec<u8>,
    /// See [`ability`].
    pub abilities: Vec<u16>,
    /// KV layout group: a prefill/decode pair must share it.
    pub group: Vec<u16>,
    /// Where the worker runs.
    pub zone: Vec<u16>,
    /// KV blocks the engine has.
    pub kv_blocks_total: Vec<u32>,
    /// Measured, smoothed; 0 while nothing was measured.
    pub prefill_tokens_per_s: Vec<f32>,
    /// Measured, smoothed; 0 while nothing was measured.
    pub decode_step_ms: Vec<f32>,
    /// Measured, smoothed; 0 while nothing was measured.
    pub link_mb_per_s: Vec<f32>,
    /// Prefill end to decode start beyond the bytes' own time; 0 while nothing was measured.
    pub pull_overhead_ms: Vec<f32>,
    /// As `pull_overhead_ms`, for push.
    pub push_overhead_ms: Vec<f32>,
    /// 0..1, smoothed.
    pub failure_rate: Vec<f32>,
}

impl FleetColumns {
    /// How many workers the table has.
    pub fn len(&self) -> usize {
        self.id.len()
    }

    /// Whether no worker serves the model.
    pub fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    /// The role of a row, or `None` when the row is out of range.
    pub fn role(&self, row: Row) -> Option<Role> {
        self.role.get(row as usize).and_then(|number| Role::from_wire(*number))
    }

    /// Whether a row has all the given [`ability`] bits.
    pub fn can(&self, row: Row, bits: u16) -> bool {
        self.abilities.get(row as usize).is_some_and(|have| have & bits == bits)
    }

    /// Whether one worker can serve a request alone.
    pub fn serves_alone(&self, row: Row) -> bool {
        match self.role(row) {
            Some(Role::Unified) => true,
            Some(Role::Decode) => self.can(row, ability::CAN_PREFILL),
            _ => false,
        }
    }

    /// Whether a row takes new work: a draining one does not.
    pub fn takes_work(&self, row: Row) -> bool {
        !self.can(row, ability::DRAINING)
    }

    /// Whether these rows can serve a new request: one of them alone, or two of them as a pair.
    pub fn can_serve(&self, rows: &[Row]) -> bool {
        let group = |row: &Row| self.group.get(*row as usize);
        let open = || rows.iter().filter(|row| self.takes_work(**row));
        let of_role = |role| open().filter(move |row| self.role(**row) == Some(role));
        open().any(|row| self.serves_alone(*row))
            || of_role(Role::Prefill)
                .any(|prefill| of_role(Role::Decode).any(|decode| group(prefill) == group(decode)))
    }

    /// All rows, in table order.
    pub fn rows(&self) -> impl Iterator<Item = Row> + use<> {
        0..self.len() as Row
    }
}

/// What the host books per request, copied out at the moment of the decision. Same rows as [`FleetColumns`].
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LoadColumns {
    /// Requests.
    pub running: Vec<u32>,
    /// Requests.
    pub waiting: Vec<u32>,
    /// Admitted, not yet prefilled.
    pub prefill_backlog_tokens: Vec<u32>,
    /// Context of the sequences now decoding.
    pub decode_context_tokens: Vec<u32>,
    /// Generated so far by them.
    pub decode_output_tokens: Vec<u32>,
    /// KV blocks neither in use nor booked.
    pub kv_blocks_free: Vec<u32>,
    /// KV blocks kept for idle sessions.
    pub kv_blocks_held: Vec<u32>,
}

/// The request, as far as a policy may know it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestFacts {
    /// Served model name, as the client wrote it.
    pub model: String,
    /// Who pays for it.
    pub tenant: String,
    /// Name of the workload binding that matched.
    pub workload: String,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Whether `prompt_tokens` was counted rather than estimated from bytes.
    pub prompt_tokens_exact: bool,
    /// The client's limit, or the model's.
    pub max_output_tokens: u32,
    /// Whether the client asked for a stream.
    pub streams: bool,
    /// Higher is more urgent.
    pub priority: i32,
    /// Latency target of the workload.
    pub ttft_target_ms: Option<u32>,
    /// Latency target of the workload.
    pub tpot_target_ms: Option<u32>,
    /// 0 for the first attempt.
    pub attempt: u32,
    /// Headers the configuration lets through.
    pub labels: Vec<(String, String)>,
}

/// What is remembered of the conversation this request continues.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SessionFacts {
    /// How many turns ended before this one.
    pub turn: u32,
    /// Decode worker of the last turn.
    pub holder: Option<Row>,
    /// Prefill worker of the last turn.
    pub last_prefill: Option<Row>,
    /// Proven prefix of this prompt that the holder holds.
    pub held_tokens: u32,
    /// How long the hold is still good.
    pub held_expires_in_ms: u32,
    /// Between the end of the last turn and this request.
    pub last_gap_ms: u32,
    /// Mean of the gaps between turns.
    pub mean_gap_ms: f32,
    /// Standard deviation of the gaps between turns.
    pub gap_spread_ms: f32,
}

/// A column added without a new WIT version; one value per worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ExtraColumn {
    /// Key of the host's documented table.
    pub key: u16,
    /// One per row.
    pub values: Vec<f32>,
}

/// All that a policy decides on.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Facts {
    /// Wall clock, milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Hash of the conversation: the same on every host and every attempt.
    pub seed: u64,
    /// How many decisions this workload had before this one.
    pub sequence: u64,
    /// Tokens a KV block.
    pub block_tokens: u32,
    /// KV bytes a token.
    pub kv_bytes_per_token: u32,
    /// The request.
    pub request: RequestFacts,
    /// The conversation, if it is known.
    pub session: Option<SessionFacts>,
    /// The workers, shared with every other request of this moment.
    pub fleet: Arc<FleetColumns>,
    /// Their load at the moment of the decision.
    pub load: LoadColumns,
    /// Leading tokens of this prompt believed resident, per row.
    pub cached_tokens: Vec<u32>,
    /// More columns.
    pub extra: Vec<ExtraColumn>,
}

impl Facts {
    /// See [`FleetColumns::role`].
    pub fn role(&self, row: Row) -> Option<Role> {
        self.fleet.role(row)
    }

    /// See [`FleetColumns::can`].
    pub fn can(&self, row: Row, bits: u16) -> bool {
        self.fleet.can(row, bits)
    }

    /// See [`FleetColumns::serves_alone`].
    pub fn serves_alone(&self, row: Row) -> bool {
        self.fleet.serves_alone(row)
    }

    /// Rows of one role, in table order.
    pub fn rows(&self, role: Role) -> impl Iterator<Item = Row> + '_ {
        self.fleet.role.iter().zip(0..).filter(move |(number, _)| **number == role as u8).map(|(_, row)| row)
    }
}

/// The end of a prefill, for `bind-decode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Prefilled {
    /// Who prefilled.
    pub prefill: Row,
    /// Prompt tokens, as the prefill worker counted them.
    pub tokens: u32,
    /// From dispatch to answer.
    pub took_ms: u32,
    /// How long its KV blocks are still good.
    pub handle_expires_in_ms: u32,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finish {
    /// The model's own end, or a stop string.
    Stop,
    /// The token limit.
    Length,
    /// Tool calls: another turn most likely follows.
    ToolCalls,
    /// Anything else.
    Other,
}

/// The end of a turn, for `retain`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TurnEnd {
    /// The turn's facts.
    pub facts: Facts,
    /// Who decoded.
    pub decode: Row,
    /// Tokens whose KV the decode worker has now.
    pub held_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Why the answer ended.
    pub finish: Finish,
}

/// A hold whose heartbeat is due, for `heartbeat`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lease {
    /// Facts of this moment.
    pub facts: Facts,
    /// Who holds the KV blocks.
    pub holder: Row,
    /// Tokens held.
    pub held_tokens: u32,
    /// Since the turn's end.
    pub idle_ms: u32,
    /// How often it was renewed.
    pub renewals: u32,
    /// How long the hold is still good.
    pub expires_in_ms: u32,
}
