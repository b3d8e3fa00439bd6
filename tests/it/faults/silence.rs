//! An engine that is alive and silent (SIGSTOP), and then goes on: deadlines hold, and what it says late reaches nobody.

use sluice_harness::until;

use super::points::{Point, bring, named};
use super::{PROMPT_WORDS, Way, as_before, each, nonce};
use crate::{SOON, right};

const LIMITS: &str = "prefill_timeout_ms = 600\ndecode_first_byte_ms = 600\n";

#[derive(Debug, Clone, Copy)]
struct Case {
    way: Way,
    /// Of the engine that falls silent.
    role: &'static str,
}

const CASES: [Case; 4] = [
    Case { way: Way::Unified, role: "unified" },
    Case { way: Way::Early, role: "prefill" },
    Case { way: Way::Early, role: "decode" },
    Case { way: Way::Late, role: "decode" },
];

/// Silent before the first byte: the others serve.
async fn before_the_first_byte(number: u64, case: Case) {
    let mut fleet = case.way.plan(2).pool(LIMITS).start().await.unwrap();
    let name = named(&fleet, case.role)[0].clone();
    fleet.worker_mut(&name).process().freeze().unwrap();
    let failures = [("worker", name.as_str()), ("kind", "late")];
    let mut asked = 0;
    until("the silent one to be met", SOON, async || {
        asked += 1;
        right(fleet.client(), &nonce(number * 1_000 + asked, PROMPT_WORDS, 2, true)).await;
        let metrics = fleet.host.metrics().await.ok()?;
        (metrics.sum("sluice_leg_failures_total", &failures) >= 1.0).then_some(())
    })
    .await
    .unwrap();
    let metrics = fleet.host.metrics().await.unwrap();
    assert!(metrics.sum("sluice_retries_total", &[("reason", "late")]) >= 1.0);
    assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", "ok")]), asked as f64);
    fleet.worker_mut(&name).process().thaw().unwrap();
    fleet.host.until_ready().await.unwrap();
    as_before(&fleet, &[], number).await;
}

/// Silent in the midst of a stream: it ends in an error, and stays ended.
async fn in_mid_stream(number: u64, case: Case) {
    let mut plan = case.way.plan(2);
    plan.host.server.push_str("stream_silence_ms = 400\n");
    let mut fleet = plan.start().await.unwrap();
    let ask = Point::MidAnswer.ask(number, 5_000, true).with("ignore_eos", true);
    let underway = bring(&mut fleet, Point::MidAnswer, &ask).await;
    let mut writes = None;
    for name in named(&fleet, case.role) {
        if fleet.host.worker(&name).await.unwrap()["booked"]["requests"] == 1 {
            writes = Some(name);
        }
    }
    let name = writes.expect("somebody writes");
    fleet.worker_mut(&name).process().freeze().unwrap();
    let came = underway.ended(&ask).await;
    assert!(!came.is_whole && came.error.as_deref() == Some("stream_silent"), "{:?}", came.error);
    let failures = [("worker", name.as_str()), ("kind", "late")];
    assert_eq!(fleet.host.metrics().await.unwrap().sum("sluice_leg_failures_total", &failures), 1.0);
    fleet.worker_mut(&name).process().thaw().unwrap();
    fleet.host.until_ready().await.unwrap();
    as_before(&fleet, &[], number).await;
}

#[tokio::test]
async fn a_silent_engine_is_given_up_and_others_serve() {
    each(CASES.to_vec(), before_the_first_byte).await;
}

#[tokio::test]
async fn a_stream_that_falls_silent_ends_in_an_error() {
    each(CASES.into_iter().filter(|case| case.role != "prefill").collect(), in_mid_stream).await;
}
