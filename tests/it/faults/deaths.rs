//! An engine dies (kill -9) in the midst of a request, at every point of it, with others left: what the client has seen
//! nothing of is served elsewhere, and what it has seen a part of ends in an error, never as if it were whole.

use super::points::{Point, bring, let_all_pass, named};
use super::{Way, as_before, counted, each};
use sluice_harness::{Fleet, until};

use crate::SOON;

/// Over a second of decode steps.
const LONG: usize = 300;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// Of the pair, the one that prefills.
    Prefill,
    /// The one that decodes, or does it all.
    Decode,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    victim: Victim,
    point: Point,
    way: Way,
    streams: bool,
}

impl Case {
    fn happens(self) -> bool {
        let Self { victim, point, way, streams } = self;
        let is_the_engines = !matches!(point, Point::Queue | Point::Body | Point::BetweenLegs);
        // Nobody is to decode before the prefill is done.
        let is_chosen = way != Way::Late
            || victim == Victim::Prefill
            || !matches!(point, Point::Prefill | Point::PrefillDone | Point::PrefillHead);
        let has_prefill = way.has_two_legs() || victim == Victim::Decode;
        point.is_on(way, streams) && is_the_engines && is_chosen && has_prefill
    }

    /// Whether the client had read a part of the answer, whose engine then died.
    fn breaks(self) -> bool {
        let seen = matches!(self.point, Point::MidAnswer | Point::BeforeEnd);
        self.streams && seen && self.victim == Victim::Decode
    }
}

fn table(way: Way) -> Vec<Case> {
    let victims = [Victim::Prefill, Victim::Decode];
    let cases = Point::ALL.into_iter().flat_map(|point| victims.map(|victim| (point, victim)));
    let cases =
        cases.flat_map(|(point, victim)| [true, false].map(|streams| Case { victim, point, way, streams }));
    cases.filter(|case| case.happens()).collect()
}

/// The worker of a role that has to do with the only request there is.
async fn met(fleet: &Fleet, victim: Victim) -> String {
    let role = if victim == Victim::Prefill { "prefill" } else { "decode" };
    until("the request's worker", SOON, async || {
        for name in named(fleet, role) {
            let booked = fleet.host.worker(&name).await.ok()?["booked"]["requests"] == 1;
            let computed = fleet.worker(&name).state().await.ok()?["prompt_tokens"]["computed"].as_u64()? > 0;
            if booked || (victim == Victim::Prefill && computed) {
                return Some(name);
            }
        }
        None
    })
    .await
    .unwrap()
}

async fn dies(number: u64, case: Case) {
    let mut fleet = case.way.plan(2).start().await.unwrap();
    let ask = case.point.ask(number, LONG, case.streams);
    let underway = bring(&mut fleet, case.point, &ask).await;
    let victim = met(&fleet, case.victim).await;
    fleet.kill_at_once(&[&victim]).await.unwrap();
    fleet.gates(&victim).http.cut();
    let_all_pass(&mut fleet);
    let came = underway.ended(&ask).await;
    if case.breaks() {
        assert!(!came.is_whole && came.error.as_deref() == Some("stream_broken"), "{:?}", came.error);
        assert!(ask.expected().text.starts_with(&came.text), "{:?}", came.text);
        counted(&fleet, "sluice_requests_total", &[("outcome", "decode_failed")], 1.0).await;
        counted(&fleet, "sluice_retries_total", &[], 0.0).await;
    } else {
        assert!(came.is_whole && came.text == ask.expected().text, "{:?}: {:?}", came.error, came.text);
        counted(&fleet, "sluice_requests_total", &[("outcome", "ok")], 1.0).await;
    }
    counted(&fleet, "sluice_requests_total", &[], 1.0).await;
    as_before(&fleet, &[&victim], number).await;
}

#[tokio::test]
async fn of_workers_that_do_it_all() {
    each(table(Way::Unified), dies).await;
}

#[tokio::test]
async fn with_decode_chosen_at_once() {
    each(table(Way::Early), dies).await;
}

#[tokio::test]
async fn with_decode_chosen_after_prefill() {
    each(table(Way::Late), dies).await;
}

#[tokio::test]
async fn whose_kv_the_host_moves_after_the_prefill() {
    each(table(Way::Brought), dies).await;
}

#[tokio::test]
async fn whose_kv_the_host_moves_while_both_work() {
    each(table(Way::Pushed), dies).await;
}
