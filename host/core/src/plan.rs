//! The check that a policy's answer can be executed. What does not check out is a fault of the policy; the
//! host's default then decides.
//!
//! A transfer mode that the pool cannot do is no fault: it is a preference, and the host coerces it.

use thiserror::Error;

use crate::facts::{Facts, Role, Row, ability};
use crate::verdict::{
    DecodeChoice, Disaggregated, Placement, Rejection, Renewal, Retention, Route, TransferMode, Verdict,
};

/// HTTP status codes that a rejection may carry: a policy refuses, it does not answer in the engine's place.
pub const REJECTION_STATUS: std::ops::RangeInclusive<u16> = 400..=599;
/// Longest message of a rejection, bytes: it goes to a client in an error body, on one screen.
pub const REJECTION_MESSAGE_BYTES_MAX: usize = 1_024;
/// Longest reason of a route, bytes: it goes into a response header and a log line.
pub const REASON_BYTES_MAX: usize = 256;
/// Most hints of a route: there are not so many engine knobs.
pub const HINTS_MAX: usize = 16;
/// Longest hints of a route, keys and values together, bytes: they go with the request to an engine.
pub const HINTS_BYTES_MAX: usize = 1_024;
/// Longest time that one answer may keep KV blocks, ms: a day. Longer holds are renewed, not granted.
pub const HOLD_MS_MAX: u32 = 24 * 60 * 60 * 1_000;
/// Shortest interval between heartbeats, ms: below it, asking costs more than the blocks are worth.
pub const HEARTBEAT_MS_MIN: u32 = 100;

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

/// Checks the answer of `route`.
pub fn check(verdict: &Verdict, facts: &Facts) -> Result<(), BadVerdict> {
    match verdict {
        Verdict::UseDefault => Ok(()),
        Verdict::Route(route) => check_route(route, facts),
        Verdict::Reject(rejection) => check_rejection(rejection),
    }
}

/// Checks that a request can be served so.
pub fn check_route(route: &Route, facts: &Facts) -> Result<(), BadVerdict> {
    match route.placement {
        Placement::Unified(row) => check_unified(row, facts)?,
        Placement::Disaggregated(pair) => check_pair(&pair, facts)?,
    }
    check_texts(route)
}

fn check_texts(route: &Route) -> Result<(), BadVerdict> {
    let bytes = route.reason.as_ref().map_or(0, String::len);
    if bytes > REASON_BYTES_MAX {
        return Err(BadVerdict::Reason { bytes });
    }
    let (count, bytes) =
        (route.hints.len(), route.hints.iter().map(|(key, value)| key.len() + value.len()).sum());
    if count > HINTS_MAX || bytes > HINTS_BYTES_MAX {
        return Err(BadVerdict::Hints { count, bytes });
    }
    Ok(())
}

/// Checks that a rejection is one.
pub fn check_rejection(rejection: &Rejection) -> Result<(), BadVerdict> {
    if !REJECTION_STATUS.contains(&rejection.status) {
        return Err(BadVerdict::RejectionStatus { status: rejection.status });
    }
    let bytes = rejection.message.len();
    if bytes > REJECTION_MESSAGE_BYTES_MAX {
        return Err(BadVerdict::RejectionMessage { bytes });
    }
    Ok(())
}

/// Checks the answer of `bind-decode` for a request that this row prefilled.
pub fn check_decode(decode: Row, prefill: Row, facts: &Facts) -> Result<(), BadVerdict> {
    check_role("decode", decode, Role::Decode, facts)?;
    check_groups(prefill, decode, facts)
}

/// Checks the answer of `retain`.
pub fn check_retention(retention: &Retention) -> Result<(), BadVerdict> {
    let Retention::Keep(keep) = retention else { return Ok(()) };
    check_hold(keep.ttl_ms)?;
    match keep.heartbeat_ms {
        Some(heartbeat_ms) if heartbeat_ms < HEARTBEAT_MS_MIN || heartbeat_ms >= keep.ttl_ms => {
            Err(BadVerdict::HeartbeatInterval { heartbeat_ms, ttl_ms: keep.ttl_ms })
        }
        _ => Ok(()),
    }
}

/// Checks the answer of `heartbeat`.
pub fn check_renewal(renewal: &Renewal) -> Result<(), BadVerdict> {
    match renewal {
        Renewal::Renew(ms) => check_hold(*ms),
        Renewal::UseDefault | Renewal::Release => Ok(()),
    }
}

fn check_unified(row: Row, facts: &Facts) -> Result<(), BadVerdict> {
    let role = known_role("unified", row, facts)?;
    if !facts.serves_alone(row) {
        let cure = "a unified row, or a decode row with the can-prefill ability (16)";
        return Err(BadVerdict::WrongRole { part: "unified", row, role: role.name(), cure });
    }
    check_not_draining("unified", row, facts)
}

fn check_pair(pair: &Disaggregated, facts: &Facts) -> Result<(), BadVerdict> {
    check_role("prefill", pair.prefill, Role::Prefill, facts)?;
    match (pair.decode, pair.transfer) {
        (DecodeChoice::Now(decode), _) => check_decode(decode, pair.prefill, facts),
        (DecodeChoice::AfterPrefill, TransferMode::Pull) => Ok(()),
        (DecodeChoice::AfterPrefill, TransferMode::Push) => {
            Err(BadVerdict::PushWithoutDecode { prefill: pair.prefill })
        }
    }
}

fn check_role(part: &'static str, row: Row, wanted: Role, facts: &Facts) -> Result<(), BadVerdict> {
    let role = known_role(part, row, facts)?;
    if role != wanted {
        let cure = match wanted {
            Role::Unified => "a unified row",
            Role::Prefill => "a prefill row (role 1)",
            Role::Decode => "a decode row (role 2)",
        };
        return Err(BadVerdict::WrongRole { part, row, role: role.name(), cure });
    }
    check_not_draining(part, row, facts)
}

fn known_role(part: &'static str, row: Row, facts: &Facts) -> Result<Role, BadVerdict> {
    facts.role(row).ok_or(BadVerdict::NoSuchRow { part, row, rows: facts.fleet.len() })
}

fn check_not_draining(part: &'static str, row: Row, facts: &Facts) -> Result<(), BadVerdict> {
    if facts.can(row, ability::DRAINING) { Err(BadVerdict::Draining { part, row }) } else { Ok(()) }
}

fn check_groups(prefill: Row, decode: Row, facts: &Facts) -> Result<(), BadVerdict> {
    let group = |part, row: Row| {
        let rows = facts.fleet.len();
        facts.fleet.group.get(row as usize).copied().ok_or(BadVerdict::NoSuchRow { part, row, rows })
    };
    let (prefill_group, decode_group) = (group("prefill", prefill)?, group("decode", decode)?);
    if prefill_group != decode_group {
        return Err(BadVerdict::GroupsDiffer { prefill, prefill_group, decode, decode_group });
    }
    Ok(())
}

fn check_hold(ms: u32) -> Result<(), BadVerdict> {
    if (1..=HOLD_MS_MAX).contains(&ms) { Ok(()) } else { Err(BadVerdict::HoldTime { ms }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::FleetColumns;
    use crate::testing;
    use crate::verdict::Keep;
    use DecodeChoice::{AfterPrefill, Now};
    use TransferMode::{Pull, Push};
    use std::sync::Arc;

    const UNIFIED: Row = 0;
    const PREFILL: Row = 1;
    const DECODE: Row = 2;
    const DECODE_ALONE: Row = 3;
    const OTHER_GROUP: Row = 4;
    const DRAINING_DECODE: Row = 5;
    const DRAINING_PREFILL: Row = 6;
    const DRAINING_UNIFIED: Row = 7;
    const BEYOND: Row = 8;

    fn facts() -> Facts {
        let mut facts = testing::table(&[
            testing::unified(),
            testing::prefill(),
            testing::decode(),
            (Role::Decode, ability::CAN_PREFILL),
            testing::decode(),
            (Role::Decode, ability::DRAINING),
            (Role::Prefill, ability::DRAINING),
            (Role::Unified, ability::DRAINING),
        ]);
        let mut fleet: FleetColumns = (*facts.fleet).clone();
        fleet.group[OTHER_GROUP as usize] = 7;
        facts.fleet = Arc::new(fleet);
        facts
    }

    fn kind_of(result: Result<(), BadVerdict>) -> &'static str {
        result.map_or_else(|bad| bad.kind(), |()| "good")
    }

    #[test]
    fn unified_rows() {
        for (row, expected) in [
            (UNIFIED, "good"),
            (DECODE_ALONE, "good"),
            (DECODE, "wrong-role"),
            (PREFILL, "wrong-role"),
            (DRAINING_UNIFIED, "draining"),
            (BEYOND, "no-such-row"),
            (Row::MAX, "no-such-row"),
        ] {
            let route = Route { placement: Placement::Unified(row), reason: None, hints: vec![] };
            assert_eq!(kind_of(check_route(&route, &facts())), expected, "row {row}");
        }
    }

    #[test]
    fn pairs() {
        for (prefill, decode, transfer, expected) in [
            (PREFILL, Now(DECODE), Pull, "good"),
            (PREFILL, Now(DECODE), Push, "good"),
            (PREFILL, Now(DECODE_ALONE), Pull, "good"),
            (PREFILL, AfterPrefill, Pull, "good"),
            (PREFILL, AfterPrefill, Push, "push-without-decode"),
            (UNIFIED, Now(DECODE), Pull, "wrong-role"),
            (DECODE, Now(DECODE), Pull, "wrong-role"),
            (PREFILL, Now(PREFILL), Pull, "wrong-role"),
            (PREFILL, Now(UNIFIED), Pull, "wrong-role"),
            (PREFILL, Now(OTHER_GROUP), Pull, "groups-differ"),
            (PREFILL, Now(DRAINING_DECODE), Pull, "draining"),
            (DRAINING_PREFILL, Now(DECODE), Pull, "draining"),
            (DRAINING_PREFILL, AfterPrefill, Pull, "draining"),
            (BEYOND, Now(DECODE), Pull, "no-such-row"),
            (PREFILL, Now(BEYOND), Pull, "no-such-row"),
        ] {
            let pair = Disaggregated { prefill, decode, transfer, kv_recompute_threshold_tokens: 0 };
            let route = Route { placement: Placement::Disaggregated(pair), reason: None, hints: vec![] };
            let found = kind_of(check(&Verdict::Route(route), &facts()));
            assert_eq!(found, expected, "{prefill} -> {decode:?} by {transfer:?}");
        }
    }

    #[test]
    fn late_decode_rows() {
        for (decode, prefill, expected) in [
            (DECODE, PREFILL, "good"),
            // A prefill worker that began to drain since still serves the read of its blocks.
            (DECODE, DRAINING_PREFILL, "good"),
            (OTHER_GROUP, PREFILL, "groups-differ"),
            (PREFILL, PREFILL, "wrong-role"),
            (DRAINING_DECODE, PREFILL, "draining"),
            (BEYOND, PREFILL, "no-such-row"),
            (DECODE, BEYOND, "no-such-row"),
        ] {
            assert_eq!(
                kind_of(check_decode(decode, prefill, &facts())),
                expected,
                "{decode} after {prefill}"
            );
        }
    }

    #[test]
    fn texts_of_a_route() {
        let hints = |count: usize, bytes: usize| vec![("k".to_owned(), "v".repeat(bytes)); count];
        for (reason_bytes, hints, expected) in [
            (0, hints(0, 0), "good"),
            (REASON_BYTES_MAX, hints(HINTS_MAX, 1), "good"),
            (REASON_BYTES_MAX + 1, hints(0, 0), "reason"),
            (0, hints(HINTS_MAX + 1, 0), "hints"),
            (0, hints(1, HINTS_BYTES_MAX - 1), "good"),
            (0, hints(1, HINTS_BYTES_MAX), "hints"),
        ] {
            let reason = Some("x".repeat(reason_bytes));
            let route = Route { placement: Placement::Unified(UNIFIED), reason, hints };
            let found = kind_of(check_route(&route, &facts()));
            assert_eq!(found, expected, "reason of {reason_bytes} bytes, {} hints", route.hints.len());
        }
    }

    #[test]
    fn rejections() {
        for (status, message_bytes, expected) in [
            (400, 0, "good"),
            (599, REJECTION_MESSAGE_BYTES_MAX, "good"),
            (399, 0, "rejection-status"),
            (600, 0, "rejection-status"),
            (200, 0, "rejection-status"),
            (429, REJECTION_MESSAGE_BYTES_MAX + 1, "rejection-message"),
        ] {
            let rejection = Rejection { status, retry_after_ms: None, message: "x".repeat(message_bytes) };
            let found = kind_of(check(&Verdict::Reject(rejection), &facts()));
            assert_eq!(found, expected, "status {status}, {message_bytes} bytes");
        }
    }

    #[test]
    fn holds() {
        for (ttl_ms, heartbeat_ms, expected) in [
            (1, None, "good"),
            (HOLD_MS_MAX, None, "good"),
            (30_000, Some(5_000), "good"),
            (30_000, Some(HEARTBEAT_MS_MIN), "good"),
            (0, None, "hold-time"),
            (HOLD_MS_MAX + 1, None, "hold-time"),
            (30_000, Some(30_000), "heartbeat-interval"),
            (30_000, Some(HEARTBEAT_MS_MIN - 1), "heartbeat-interval"),
            (30_000, Some(0), "heartbeat-interval"),
        ] {
            let keep = Retention::Keep(Keep { ttl_ms, heartbeat_ms });
            assert_eq!(kind_of(check_retention(&keep)), expected, "{ttl_ms} ms, {heartbeat_ms:?}");
        }
        assert_eq!(kind_of(check_renewal(&Renewal::Renew(0))), "hold-time");
        assert_eq!(kind_of(check_renewal(&Renewal::Renew(1_000))), "good");
        assert_eq!(kind_of(check_renewal(&Renewal::Release)), "good");
    }

    #[test]
    fn messages_name_the_row_and_the_cure() {
        let route = Route { placement: Placement::Unified(PREFILL), reason: None, hints: vec![] };
        let text = check_route(&route, &facts()).unwrap_err().to_string();
        assert_eq!(
            text,
            "unified row 1 is a prefill worker, which cannot do that; \
             choose a unified row, or a decode row with the can-prefill ability (16)"
        );
    }
}
