//! What a policy answers. Shapes mirror `sdk/policy/wit/policy.wit`.

use serde::Serialize;

use crate::facts::Row;

/// Who writes or reads: push (prefill writes) or pull (decode reads).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferMode {
    /// The decode worker reads the blocks once prefill is done.
    Pull,
    /// The prefill worker writes the blocks while the decode worker waits.
    Push,
}

/// When the decode worker is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecodeChoice {
    /// Early: with the prefill worker.
    Now(Row),
    /// Late: by `bind-decode`, once the prefill is done.
    AfterPrefill,
}

/// Prefill and decode on different workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Disaggregated {
    /// Who prefills.
    pub prefill: Row,
    /// Who decodes.
    pub decode: DecodeChoice,
    /// How the KV moves.
    pub transfer: TransferMode,
    /// Fetch held KV only if it saves at least this many tokens.
    pub kv_recompute_threshold_tokens: u32,
}

/// Where a request runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// One worker prefills and decodes.
    Unified(Row),
    /// Two workers.
    Disaggregated(Disaggregated),
}

/// A request is to be served.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Route {
    /// Where.
    pub placement: Placement,
    /// Why, for people.
    pub reason: Option<String>,
    /// Documented engine knobs.
    pub hints: Vec<(String, String)>,
}

/// A request is not to be served.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rejection {
    /// HTTP status, 400..=599.
    pub status: u16,
    /// When to try again.
    pub retry_after_ms: Option<u32>,
    /// For the client.
    pub message: String,
}

/// The answer of `route`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The host's default decides.
    UseDefault,
    /// Serve it so.
    Route(Route),
    /// Do not serve it.
    Reject(Rejection),
}

/// Keep a decode worker's KV blocks for the next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Keep {
    /// For how long.
    pub ttl_ms: u32,
    /// Ask again each interval: a lease.
    pub heartbeat_ms: Option<u32>,
}

/// The answer of `retain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retention {
    /// The host's default decides.
    UseDefault,
    /// Free the blocks now.
    Release,
    /// Keep them.
    Keep(Keep),
}

/// The answer of `heartbeat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Renewal {
    /// The host's default decides.
    UseDefault,
    /// Keep for this many milliseconds more.
    Renew(u32),
    /// Free the blocks now.
    Release,
}

/// What a policy says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Description {
    /// Its own name; the file's name is what the host calls it by.
    pub name: String,
    /// Its version.
    pub version: String,
    /// One sentence.
    pub about: String,
    /// JSON Schema of its settings.
    pub settings_schema: String,
}
