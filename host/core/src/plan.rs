//! The check that a policy's answer can be executed. What does not check out is a fault of the policy; the
//! host's default then decides.
//!
//! A transfer mode that the pool cannot do is no fault: it is a preference, and the host coerces it.

mod bad_verdict;

pub use bad_verdict::BadVerdict;

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
mod tests;
