//! A client that goes away: its work ends on the engines, and is counted as cancelled.

use sluice_harness::{Ask, Fleet, FleetPlan};
use sluice_sim::words;

use crate::{SOON, right};

const CANCELLED: (&str, &[(&str, &str)]) = ("sluice_requests_total", &[("outcome", "cancelled")]);

async fn cancelled_everywhere(fleet: &Fleet) {
    let (name, labels) = CANCELLED;
    fleet.host.until_metric(name, labels, |count| count == 1.0, SOON).await.unwrap();
    fleet.host.until_metric("sluice_in_flight_requests", &[], |count| count == 0.0, SOON).await.unwrap();
    for worker in fleet.workers() {
        worker.until_idle(SOON).await.unwrap();
    }
    // The host's own books are in order, too: nothing stays booked on any worker.
    for name in ["prefill-0", "decode-0"] {
        let booked = fleet.host.worker(name).await.unwrap()["booked"].clone();
        assert_eq!(booked["requests"], 0, "{name}: {booked}");
    }
    right(fleet.client(), &Ask::completion("still there", 4)).await;
}

#[tokio::test]
async fn in_mid_stream() {
    let slow = "--time-scale 1 --decode-step-base-ms 20";
    let fleet = FleetPlan::pull(1, 1).engines("decode", slow).start().await.unwrap();
    let ask = Ask::completion(&words(1, 64), 5_000).with("ignore_eos", true).streamed();
    let mut stream = fleet.client().stream(ask.endpoint.path(), &ask.json(), &[]).await.unwrap();
    for _ in 0..3 {
        stream.next().await.unwrap().expect("a stream of 5,000 tokens goes on");
    }
    drop(stream);
    cancelled_everywhere(&fleet).await;
}

#[tokio::test]
async fn while_a_whole_answer_is_generated() {
    let slow = "--time-scale 1 --decode-step-base-ms 20";
    let fleet = FleetPlan::pull(1, 1).engines("decode", slow).start().await.unwrap();
    let ask = Ask::completion(&words(1, 64), 5_000).with("ignore_eos", true);
    tokio::select! {
        reply = fleet.client().ask(&ask) => panic!("5,000 slow tokens came: {reply:?}"),
        running = fleet.worker("decode-0").until_running(1, SOON) => running.unwrap(),
    }
    cancelled_everywhere(&fleet).await;
}

#[tokio::test]
async fn during_prefill() {
    let slow = "--time-scale 1 --prefill-tokens-per-s 1000 --max-step-tokens 64";
    let fleet = FleetPlan::pull(1, 1).engines("prefill", slow).start().await.unwrap();
    let ask = Ask::completion(&words(1, 20_000), 4);
    tokio::select! {
        reply = fleet.client().ask(&ask) => panic!("20 s of prefill are over: {reply:?}"),
        running = fleet.worker("prefill-0").until_running(1, SOON) => running.unwrap(),
    }
    cancelled_everywhere(&fleet).await;
}
