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
        assert_eq!(kind_of(check_decode(decode, prefill, &facts())), expected, "{decode} after {prefill}");
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
