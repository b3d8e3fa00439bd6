//! A policy's answers, from the bytes in its memory to what the host executes.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sluice_core::facts::{Facts, FleetColumns, Row};
use sluice_core::testing;
use sluice_core::verdict::{DecodeChoice, Placement, Renewal, Retention, Route, TransferMode, Verdict};

use crate::policy_host::{self, Answer, Bench, PREFILL};

/// Answers with the bytes of the column `running`.
const ECHO: &str = include_str!("../../guests/wat/echo.wat");

/// Workers of one table: few, so that random rows often exist.
const WORKERS_AT_MOST: usize = 8;

/// Bytes of an input for each worker: role, abilities, group.
const WORKER_BYTES: usize = 3;

/// Kinds of fault that an answer can be.
const FAULTS_OF_ANSWERS: [&str; 3] = ["bad-answer", "bad-row", "bad-value"];

const PREFILL_ROLE: u8 = 1;
const DECODE_ROLE: u8 = 2;
const DRAINING: u16 = 8;
const CAN_PREFILL: u16 = 16;
const DAY_MS: u32 = 24 * 60 * 60 * 1_000;

/// Takes a hook, a table of workers, and the bytes of the answer. Says whether they are an answer at all.
pub fn check(input: &[u8]) -> bool {
    static BENCH: OnceLock<Mutex<Bench>> = OnceLock::new();
    let [hook, workers, rest @ ..] = input else { return false };
    let workers = usize::from(*workers) % (WORKERS_AT_MOST + 1);
    let (table, answer) = rest.split_at((workers * WORKER_BYTES).min(rest.len()));
    let facts = facts(table, answer);
    let first = || Mutex::new(Bench::new(&policy_host::assembled(ECHO).expect("a guest")));
    let bench = BENCH.get_or_init(first).lock().unwrap_or_else(PoisonError::into_inner);
    let policy = bench.policy().expect("the echo passes its trial");
    match policy_host::ask(&policy, *hook, facts.clone()) {
        Ok(answer) => {
            assert_executable(&answer, &facts);
            true
        }
        Err(fault) => {
            assert!(FAULTS_OF_ANSWERS.contains(&fault.kind()), "{fault}");
            assert!(fault.to_string().len() < 4_096, "fits a log line: {fault}");
            // It was a verdict, if none that can be executed.
            fault.kind() != "bad-answer"
        }
    }
}

fn facts(table: &[u8], answer: &[u8]) -> Facts {
    let workers: Vec<_> = table.chunks_exact(WORKER_BYTES).collect();
    let mut facts = testing::table(&vec![testing::unified(); workers.len()]);
    let fleet: &mut FleetColumns = Arc::make_mut(&mut facts.fleet);
    // Some roles that there are not, and abilities that say something to the check.
    fleet.role = workers.iter().map(|worker| worker[0] % 4).collect();
    fleet.abilities = workers.iter().map(|worker| u16::from(worker[1])).collect();
    fleet.group = workers.iter().map(|worker| u16::from(worker[2] % 2)).collect();
    let word = |bytes: &[u8]| {
        let mut word = [0; 4];
        word[..bytes.len()].copy_from_slice(bytes);
        u32::from_le_bytes(word)
    };
    facts.load.running = answer.chunks(4).map(word).collect();
    facts
}

/// What the host may do without looking again. Says it in its own words: it must not share a mistake with the check.
pub fn assert_executable(answer: &Answer, facts: &Facts) {
    match answer {
        Answer::Verdict(Verdict::Route(route)) => assert_route(route, facts),
        Answer::Verdict(Verdict::Reject(rejection)) => {
            assert!(
                (400..600).contains(&rejection.status) && rejection.message.len() <= 1_024,
                "{rejection:?}"
            );
        }
        Answer::Decode(Some(decode)) => {
            assert_role(facts, *decode, DECODE_ROLE);
            assert_eq!(group(facts, PREFILL), group(facts, *decode));
        }
        Answer::Retention(Retention::Keep(keep)) => {
            assert_hold(keep.ttl_ms);
            assert!(keep.heartbeat_ms.is_none_or(|ms| (100..keep.ttl_ms).contains(&ms)), "{keep:?}");
        }
        Answer::Renewal(Renewal::Renew(ms)) => assert_hold(*ms),
        _ => {}
    }
}

fn assert_route(route: &Route, facts: &Facts) {
    assert!(route.reason.as_ref().is_none_or(|reason| reason.len() <= 256));
    let hint_bytes: usize = route.hints.iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(route.hints.len() <= 16 && hint_bytes <= 1_024);
    match route.placement {
        Placement::Unified(row) => {
            let (role, abilities) = (facts.fleet.role[row as usize], facts.fleet.abilities[row as usize]);
            assert!(
                role == 0 || role == DECODE_ROLE && abilities & CAN_PREFILL != 0,
                "{row} has role {role}"
            );
            assert_eq!(abilities & DRAINING, 0, "{row} drains");
        }
        Placement::Disaggregated(pair) => {
            assert_role(facts, pair.prefill, PREFILL_ROLE);
            match pair.decode {
                DecodeChoice::Now(decode) => {
                    assert_role(facts, decode, DECODE_ROLE);
                    assert_eq!(group(facts, pair.prefill), group(facts, decode));
                }
                DecodeChoice::AfterPrefill => assert_eq!(pair.transfer, TransferMode::Pull),
            }
        }
    }
}

/// Panics as well where there is no such row.
fn assert_role(facts: &Facts, row: Row, role: u8) {
    assert_eq!(facts.fleet.role[row as usize], role, "row {row}");
    assert_eq!(facts.fleet.abilities[row as usize] & DRAINING, 0, "row {row} drains");
}

fn group(facts: &Facts, row: Row) -> u16 {
    facts.fleet.group[row as usize]
}

fn assert_hold(ms: u32) {
    const HOLDS: RangeInclusive<u32> = 1..=DAY_MS;
    assert!(HOLDS.contains(&ms), "held for {ms} ms");
}
