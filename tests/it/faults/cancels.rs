//! A client leaves, at every point of its request's life: engines end the work, the books are cleared, and nobody is
//! blamed.

use std::collections::BTreeMap;
use std::time::Duration;

use sluice_harness::until;

use super::points::{Point, bring, let_all_pass};
use super::{LEASE_MS, Way, as_before, counted, each, handles, until_state};
use crate::SOON;

/// Engines stop within 500 ms; the rest is for a machine that is busy. The work itself would take ten times as long.
const ABORTED_WITHIN: Duration = Duration::from_secs(2);

/// 20 s of decode steps.
const LONG: usize = 5_000;

#[derive(Debug, Clone, Copy)]
struct Case {
    point: Point,
    way: Way,
    streams: bool,
}

impl Case {
    /// What the host counts of the handle, and whether the prefill engine is left with blocks until its lease ends.
    fn left_behind(self) -> (&'static [&'static str], bool) {
        let hosted: &[_] = match (self.way, self.point) {
            (Way::Unified, _) => return (&[], false),
            (Way::Early | Way::Late, _) => return self.left_behind_by_engines(),
            (_, Point::Queue) => &["dispatched"],
            (_, Point::Body) => &[],
            (_, Point::MidAnswer | Point::BeforeEnd) if self.streams => &["dispatched"],
            // Decode was not told of it yet.
            (Way::Brought, Point::Prefill | Point::PrefillDone | Point::PrefillHead | Point::BetweenLegs) => {
                &["released"]
            }
            (Way::Brought | Way::Pushed, _) => &["abandoned"],
        };
        // What the host moves, it ends: nothing waits for a lease.
        (hosted, false)
    }

    fn left_behind_by_engines(self) -> (&'static [&'static str], bool) {
        match self.point {
            // Of the one before it, which had the place.
            Point::Queue => (&["dispatched"], false),
            Point::Body => (&[], false),
            Point::Prefill => (&["abandoned"], false),
            // No handle has come with which the holder could be told.
            Point::PrefillDone | Point::PrefillHead => (&["abandoned"], true),
            Point::BetweenLegs => (&["released"], false),
            // Decode may be reading: only the lease may end it.
            Point::Transfer => (&["abandoned"], true),
            Point::MidAnswer | Point::BeforeEnd if self.streams => (&["dispatched"], false),
            Point::BeforeFirstToken | Point::MidAnswer | Point::BeforeEnd => (&["abandoned"], false),
        }
    }
}

fn table(way: Way) -> Vec<Case> {
    let cases = Point::ALL.into_iter().flat_map(|point| [(point, true), (point, false)]);
    let cases = cases.filter(|(point, streams)| point.is_on(way, *streams));
    cases.map(|(point, streams)| Case { point, way, streams }).collect()
}

async fn leaves(number: u64, case: Case) {
    let Case { point, way, streams } = case;
    let mut plan = way.plan(1);
    if point == Point::Queue {
        plan.host.server.push_str("max_in_flight = 1\n");
    }
    let mut fleet = plan.start().await.unwrap();
    let mut cancelled = 1.0;
    let mut first = None;
    if point == Point::Queue {
        let ask = Point::MidAnswer.ask(number + 100, LONG, true).with("ignore_eos", true);
        first = Some(bring(&mut fleet, Point::MidAnswer, &ask).await);
    }
    let ask = point.ask(number, LONG, streams);
    let ask = if point == Point::BeforeEnd { ask } else { ask.with("ignore_eos", true) };
    let underway = bring(&mut fleet, point, &ask).await;

    drop(underway);
    counted(&fleet, "sluice_requests_total", &[("outcome", "cancelled")], cancelled).await;
    if first.take().is_some() {
        cancelled += 1.0;
        counted(&fleet, "sluice_requests_total", &[("outcome", "cancelled")], cancelled).await;
    }
    for name in fleet.names().to_vec() {
        let sequences = ["/sequences/running", "/sequences/loading", "/sequences/waiting"];
        until(&format!("{name} to end the work"), ABORTED_WITHIN, async || {
            let state = fleet.worker(&name).state().await.ok()?;
            sequences.iter().all(|pointer| state.pointer(pointer) == Some(&0.into())).then_some(())
        })
        .await
        .unwrap();
    }
    let (fates, is_stranded) = case.left_behind();
    if is_stranded {
        until_state(&fleet, "prefill-0", "/holds/open", |holds| holds == 1).await;
        until_state(&fleet, "prefill-0", "/holds/expired", |expired| expired == 1).await;
    }
    let_all_pass(&mut fleet);
    let expected: BTreeMap<_, _> = fates.iter().map(|fate| (*fate, 1)).collect();
    let found = until("handles to meet their end", SOON, async || {
        let found = handles(&fleet).await;
        (found.len() >= expected.len()).then_some(found)
    });
    assert_eq!(found.await.unwrap(), expected);
    if way.has_two_legs() && !is_stranded {
        fleet.worker("prefill-0").until_idle(Duration::from_millis(LEASE_MS / 2)).await.unwrap();
        until_state(&fleet, "prefill-0", "/holds/expired", |expired| expired == 0).await;
    }
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_leg_failures_total", &[]), 0.0, "a cancel is no worker's failure");
    assert_eq!(metrics.sum("sluice_requests_total", &[]), cancelled, "one outcome each");
    for name in fleet.names() {
        let worker = fleet.host.worker(name).await.unwrap();
        assert_eq!(worker["failure_rate"].as_f64(), Some(0.0), "{worker}");
        assert_eq!(worker["state"], "up", "{worker}");
    }
    as_before(&fleet, &[], number).await;
}

#[tokio::test]
async fn of_one_worker_that_does_it_all() {
    each(table(Way::Unified), leaves).await;
}

#[tokio::test]
async fn with_decode_chosen_at_once() {
    each(table(Way::Early), leaves).await;
}

#[tokio::test]
async fn with_decode_chosen_after_prefill() {
    each(table(Way::Late), leaves).await;
}

#[tokio::test]
async fn whose_kv_the_host_moves_after_the_prefill() {
    each(table(Way::Brought), leaves).await;
}

#[tokio::test]
async fn whose_kv_the_host_moves_while_both_work() {
    each(table(Way::Pushed), leaves).await;
}
