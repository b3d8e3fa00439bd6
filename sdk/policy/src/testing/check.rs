//! The host's checks of answers, for tests: what does not pass here is a fault in production.

use crate::{
    Ability, DecodeChoice, Disaggregated, Facts, Placement, Rejection, Renewal, Retention, Role, Route, Row,
    TransferMode, Verdict, Worker,
};

const REASON_BYTES_MAX: usize = 256;
const HINTS_MAX: usize = 16;
const HINTS_BYTES_MAX: usize = 1_024;
const MESSAGE_BYTES_MAX: usize = 1_024;
const HOLD_MS_MAX: u32 = 24 * 60 * 60 * 1_000;
const HEARTBEAT_MS_MIN: u32 = 100;

/// Whether the host could act on an answer of `route`; the error says why not.
///
/// ```
/// use sluice_policy_sdk::Verdict;
/// use sluice_policy_sdk::testing::{FactsBuilder, check_verdict, decode, prefill};
///
/// let facts = FactsBuilder::new().worker(prefill(1)).worker(decode(2)).build();
/// assert_eq!(check_verdict(&facts, &Verdict::pull(0, 1)), Ok(()));
/// let refused = check_verdict(&facts, &Verdict::pull(1, 0)).expect_err("the wrong way round");
/// assert_eq!(refused, "prefill row 1 is no prefill worker");
/// ```
pub fn check_verdict(facts: &Facts, verdict: &Verdict) -> Result<(), String> {
    match verdict {
        Verdict::UseDefault => Ok(()),
        Verdict::Route(route) => check_route(facts, route),
        Verdict::Reject(rejection) => check_rejection(rejection),
    }
}

/// Whether the host could act on an answer of `bind_decode` for a request that `prefill` prefilled.
pub fn check_decode(facts: &Facts, prefill: Row, decode: Row) -> Result<(), String> {
    let prefiller = worker(facts, "prefill", prefill)?;
    let decoder = of_role(facts, "decode", decode, Role::Decode)?;
    if prefiller.pairs_with(decoder) {
        return Ok(());
    }
    let (from, to) = (prefiller.group(), decoder.group());
    Err(format!("prefill row {prefill} is of KV layout group {from}, decode row {decode} of group {to}"))
}

/// Whether the host could act on an answer of `retain`.
pub fn check_retention(retention: &Retention) -> Result<(), String> {
    let Retention::Keep(keep) = retention else { return Ok(()) };
    check_hold(keep.ttl_ms)?;
    match keep.heartbeat_ms {
        Some(ms) if ms < HEARTBEAT_MS_MIN || ms >= keep.ttl_ms => Err(format!(
            "a heartbeat each {ms} ms of a lease of {} ms; it must be at least {HEARTBEAT_MS_MIN} ms, and shorter than \
             the lease",
            keep.ttl_ms
        )),
        _ => Ok(()),
    }
}

/// Whether the host could act on an answer of `heartbeat`.
pub fn check_renewal(renewal: &Renewal) -> Result<(), String> {
    match renewal {
        Renewal::Renew(ms) => check_hold(*ms),
        Renewal::UseDefault | Renewal::Release => Ok(()),
    }
}

fn check_route(facts: &Facts, route: &Route) -> Result<(), String> {
    match &route.placement {
        Placement::Unified(row) => {
            let worker = takes_work("unified", worker(facts, "unified", *row)?)?;
            if !worker.serves_alone() {
                return Err(format!("unified row {row} cannot serve a request alone"));
            }
        }
        Placement::Disaggregated(split) => check_split(facts, split)?,
    }
    let reason = route.reason.as_ref().map_or(0, String::len);
    if reason > REASON_BYTES_MAX {
        return Err(format!("the reason has {reason} bytes; it may have {REASON_BYTES_MAX}"));
    }
    let hints = route.hints.len();
    let bytes: usize = route.hints.iter().map(|(key, value)| key.len() + value.len()).sum();
    if hints > HINTS_MAX || bytes > HINTS_BYTES_MAX {
        return Err(format!(
            "{hints} hints of {bytes} bytes; there may be {HINTS_MAX} of {HINTS_BYTES_MAX} bytes together"
        ));
    }
    Ok(())
}

fn check_split(facts: &Facts, split: &Disaggregated) -> Result<(), String> {
    of_role(facts, "prefill", split.prefill, Role::Prefill)?;
    match (split.decode, split.transfer) {
        (DecodeChoice::Now(decode), _) => check_decode(facts, split.prefill, decode),
        (DecodeChoice::AfterPrefill, TransferMode::Pull) => Ok(()),
        (DecodeChoice::AfterPrefill, TransferMode::Push) => {
            Err("a push needs its decode worker before the prefill".to_owned())
        }
    }
}

fn check_rejection(rejection: &Rejection) -> Result<(), String> {
    let (status, bytes) = (rejection.status, rejection.message.len());
    if !(400..=599).contains(&status) {
        return Err(format!("a rejection with status {status}; it takes 400 to 599"));
    }
    if bytes > MESSAGE_BYTES_MAX {
        return Err(format!("the message has {bytes} bytes; it may have {MESSAGE_BYTES_MAX}"));
    }
    Ok(())
}

fn check_hold(ms: u32) -> Result<(), String> {
    if (1..=HOLD_MS_MAX).contains(&ms) {
        Ok(())
    } else {
        Err(format!("KV blocks kept for {ms} ms; it takes 1 to {HOLD_MS_MAX}"))
    }
}

fn of_role<'a>(facts: &'a Facts, part: &str, row: Row, role: Role) -> Result<Worker<'a>, String> {
    let worker = worker(facts, part, row)?;
    if worker.role() != Some(role) {
        return Err(format!("{part} row {row} is no {part} worker"));
    }
    takes_work(part, worker)
}

fn worker<'a>(facts: &'a Facts, part: &str, row: Row) -> Result<Worker<'a>, String> {
    let rows = facts.workers().len();
    facts.worker(row).ok_or_else(|| format!("{part} row {row} is not in the table of {rows} rows"))
}

fn takes_work<'a>(part: &str, worker: Worker<'a>) -> Result<Worker<'a>, String> {
    if worker.can(Ability::Draining) {
        return Err(format!("{part} row {} is draining", worker.row()));
    }
    Ok(worker)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FactsBuilder, WorkerSpec, decode, prefill, unified};

    #[test]
    fn says_what_is_wrong() {
        let facts = FactsBuilder::new()
            .worker(prefill(1))
            .worker(decode(2))
            .worker(WorkerSpec { group: 3, ..decode(3) })
            .worker(unified(4).able(Ability::Draining))
            .build();
        let texts = |count| (0..count).fold(Verdict::pull(0, 1), |verdict, _| verdict.hint("key", "value"));
        let late_push = Verdict::Route(Route {
            placement: Placement::Disaggregated(Disaggregated {
                prefill: 0,
                decode: DecodeChoice::AfterPrefill,
                transfer: TransferMode::Push,
                kv_recompute_threshold_tokens: 0,
            }),
            reason: None,
            hints: Vec::new(),
        });
        for (verdict, wrong) in [
            (Verdict::UseDefault, None),
            (Verdict::pull(0, 1).because("x".repeat(256)), None),
            (Verdict::pull_late(0), None),
            (texts(16), None),
            (Verdict::reject(599, "full"), None),
            (Verdict::unified(9), Some("not in the table of 4 rows")),
            (Verdict::unified(1), Some("cannot serve a request alone")),
            (Verdict::unified(3), Some("unified row 3 is draining")),
            (Verdict::pull(0, 2), Some("group 0, decode row 2 of group 3")),
            (Verdict::pull(0, 1).because("x".repeat(257)), Some("257 bytes")),
            (texts(17), Some("17 hints")),
            (late_push, Some("before the prefill")),
            (Verdict::reject(200, "fine"), Some("status 200")),
            (Verdict::reject(503, "x".repeat(1_025)), Some("1025 bytes")),
        ] {
            let checked = check_verdict(&facts, &verdict);
            let as_expected = match (&checked, wrong) {
                (Ok(()), None) => true,
                (Err(told), Some(wrong)) => told.contains(wrong),
                _ => false,
            };
            assert!(as_expected, "{verdict:?}: {checked:?}");
        }
    }

    #[test]
    fn holds() {
        for (retention, good) in [
            (Retention::Release, true),
            (Retention::keep_ms(1), true),
            (Retention::keep_ms(0), false),
            (Retention::keep_ms(HOLD_MS_MAX + 1), false),
            (Retention::lease_ms(1_000, 100), true),
            (Retention::lease_ms(1_000, 99), false),
            (Retention::lease_ms(1_000, 1_000), false),
        ] {
            assert_eq!(check_retention(&retention).is_ok(), good, "{retention:?}");
        }
        assert!(check_renewal(&Renewal::Renew(0)).is_err() && check_renewal(&Renewal::Renew(1)).is_ok());
    }
}
