//! What can go wrong in a call of a policy. A fault never reaches a client: the host's default decides.

use serde::Serialize;
use sluice_core::plan::BadVerdict;
use thiserror::Error;

use crate::limits::LIVE_GENERATIONS_MAX;
use crate::shown::shown;

/// The part of a policy that was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hook {
    /// Making an instance.
    Start,
    /// `describe`.
    Describe,
    /// `configure`.
    Configure,
    /// `route`.
    Route,
    /// `bind-decode`.
    BindDecode,
    /// `retain`.
    Retain,
    /// `heartbeat`.
    Heartbeat,
}

impl Hook {
    /// The name that the WIT gives it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Describe => "describe",
            Self::Configure => "configure",
            Self::Route => "route",
            Self::BindDecode => "bind-decode",
            Self::Retain => "retain",
            Self::Heartbeat => "heartbeat",
        }
    }
}

impl std::fmt::Display for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A call that gave no usable answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// The guest stopped itself: a panic, a division by zero, an access out of bounds.
    #[error(
        "`{hook}` trapped: {trap}; a panic in the policy ends so, and so does std's clock, \
         which a policy does not have; run its tests natively to find a panic"
    )]
    Trap {
        /// Where.
        hook: Hook,
        /// The kind of trap, as the runtime names it.
        trap: String,
    },
    /// The CPU budget is spent.
    #[error(
        "`{hook}` did not end within {budget_ms} ms of CPU time; do less per call, or look for an endless loop"
    )]
    CpuDeadline {
        /// Where.
        hook: Hook,
        /// What it had.
        budget_ms: u64,
    },
    /// The clock ran out although the CPU budget was not spent.
    #[error("`{hook}` did not end within {bound_ms} ms by the clock; the machine is short of CPU")]
    WallDeadline {
        /// Where.
        hook: Hook,
        /// What it had.
        bound_ms: u64,
    },
    /// More linear memory than allowed.
    #[error(
        "`{hook}` asked for {asked_bytes} bytes of memory, the limit is {limit_bytes}; raise policy.memory_mb or keep less"
    )]
    Memory {
        /// Where.
        hook: Hook,
        /// The size it wanted to grow to.
        asked_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// More table elements than allowed.
    #[error("`{hook}` asked for a table of {asked} elements, the limit is {limit}")]
    Table {
        /// Where.
        hook: Hook,
        /// The size it wanted to grow to.
        asked: usize,
        /// The limit.
        limit: usize,
    },
    /// Recursion without end, most likely.
    #[error("`{hook}` used up its call stack of {limit_bytes} bytes; look for recursion without an end")]
    Stack {
        /// Where.
        hook: Hook,
        /// The limit.
        limit_bytes: usize,
    },
    /// The answer is no value of its type, or is too long.
    #[error("the answer of `{hook}` could not be read: {detail}")]
    BadAnswer {
        /// Where.
        hook: Hook,
        /// What is wrong with it.
        detail: String,
    },
    /// The answer names a worker that is not there, or that cannot do what it should.
    #[error("the answer of `{hook}` cannot be executed: {bad}")]
    BadRow {
        /// Where.
        hook: Hook,
        /// Why.
        bad: BadVerdict,
    },
    /// The answer is a value, but a number or a text in it is out of bounds.
    #[error("the answer of `{hook}` cannot be executed: {bad}")]
    BadValue {
        /// Where.
        hook: Hook,
        /// Why.
        bad: BadVerdict,
    },
    /// The same arguments gave another answer.
    #[error(
        "`{hook}` is not pure: the same arguments gave {first} and then {again}; \
         a policy must not keep state between calls, decide on `seed`, `sequence` and the facts alone"
    )]
    Impure {
        /// Where.
        hook: Hook,
        /// The answer given.
        first: String,
        /// The answer, or the fault, of the second run.
        again: String,
    },
    /// Newer versions took its place long ago.
    #[error(
        "`{hook}` was asked of a version that {LIVE_GENERATIONS_MAX} swaps have left behind; \
         the request outlived it, swap less often"
    )]
    Expired {
        /// Where.
        hook: Hook,
    },
    /// All instances are in use.
    #[error(
        "no instance is free for `{hook}`: {limit} calls run at once; a policy that spends its CPU budget does this"
    )]
    Busy {
        /// Where.
        hook: Hook,
        /// How many there may be.
        limit: u32,
    },
}

/// All that [`Fault::kind`] can say, for tables of counters.
pub const FAULT_KINDS: [&str; 12] = [
    "trap",
    "cpu-deadline",
    "wall-deadline",
    "memory",
    "table",
    "stack",
    "bad-answer",
    "bad-row",
    "bad-value",
    "impure",
    "busy",
    "expired",
];

impl Fault {
    /// A short name for counting; one of [`FAULT_KINDS`].
    pub fn kind(&self) -> &'static str {
        FAULT_KINDS[self.index()]
    }

    pub(crate) fn index(&self) -> usize {
        match self {
            Self::Trap { .. } => 0,
            Self::CpuDeadline { .. } => 1,
            Self::WallDeadline { .. } => 2,
            Self::Memory { .. } => 3,
            Self::Table { .. } => 4,
            Self::Stack { .. } => 5,
            Self::BadAnswer { .. } => 6,
            Self::BadRow { .. } => 7,
            Self::BadValue { .. } => 8,
            Self::Impure { .. } => 9,
            Self::Busy { .. } => 10,
            Self::Expired { .. } => 11,
        }
    }

    /// The hook that was running.
    pub fn hook(&self) -> Hook {
        match self {
            Self::Trap { hook, .. }
            | Self::CpuDeadline { hook, .. }
            | Self::WallDeadline { hook, .. }
            | Self::Memory { hook, .. }
            | Self::Table { hook, .. }
            | Self::Stack { hook, .. }
            | Self::BadAnswer { hook, .. }
            | Self::BadRow { hook, .. }
            | Self::BadValue { hook, .. }
            | Self::Impure { hook, .. }
            | Self::Busy { hook, .. }
            | Self::Expired { hook } => *hook,
        }
    }

    /// Two answers to the same question; they are cut, since a guest may have written much.
    pub(crate) fn impure(hook: Hook, first: &str, again: &str) -> Self {
        Self::Impure { hook, first: shown(first), again: shown(again) }
    }

    /// An answer that is a value, and cannot be executed.
    pub(crate) fn bad_verdict(hook: Hook, bad: BadVerdict) -> Self {
        if bad.is_of_a_row() { Self::BadRow { hook, bad } } else { Self::BadValue { hook, bad } }
    }

    /// Whether it counts against the policy. The bound by the clock does, whatever the machine: a call that takes
    /// microseconds is never asked for its time twice, so only one that runs on for long ever meets it.
    pub fn speaks_of_the_policy(&self) -> bool {
        !matches!(self, Self::Busy { .. } | Self::Expired { .. })
    }

    /// Whether it says more about the machine than about the policy, so that trying again makes sense.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::WallDeadline { .. } | Self::Busy { .. })
    }
}
