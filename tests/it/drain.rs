//! SIGTERM: what is under way ends, nothing new begins, and the exit code says that all is well.

use std::time::Duration;

use sluice_harness::{Ask, FleetPlan, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{SOON, right};

#[tokio::test]
async fn streams_in_flight_end_and_nothing_new_begins() {
    let slow = "--time-scale 1 --decode-step-base-ms 20";
    let mut fleet = FleetPlan::unified(1).engines("", slow).start().await.unwrap();
    let address = fleet.client().base().trim_start_matches("http://").to_owned();

    // A request whose head is half sent when the signal comes: it is under way.
    let mut half_sent = TcpStream::connect(&address).await.unwrap();
    half_sent.write_all(b"GET /ready HTTP/1.1\r\nhost: sluice\r\n").await.unwrap();

    let ask = Ask::completion("a long story", 60).with("ignore_eos", true).streamed();
    let mut stream = fleet.client().stream(ask.endpoint.path(), &ask.json(), &[]).await.unwrap();
    stream.next().await.unwrap().expect("its first token");
    fleet.host.process().terminate().unwrap();
    until("new connections to be refused", SOON, async || {
        TcpStream::connect(&address).await.is_err().then_some(())
    })
    .await
    .unwrap();

    half_sent.write_all(b"connection: close\r\n\r\n").await.unwrap();
    let mut ready = String::new();
    half_sent.read_to_string(&mut ready).await.unwrap();
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains(r#""draining":true"#), "{ready}");

    let events = stream.rest().await.unwrap();
    assert_eq!(events.last().map(|event| event.data.as_str()), Some("[DONE]"), "{events:?}");
    assert_eq!(fleet.host.process().ended(SOON).await.unwrap(), Some(0));
}

#[tokio::test]
async fn an_idle_host_stops_at_once() {
    let mut fleet = FleetPlan::unified(1).start().await.unwrap();
    right(fleet.client(), &Ask::completion("hello", 4)).await;
    fleet.host.process().terminate().unwrap();
    assert_eq!(fleet.host.process().ended(SOON).await.unwrap(), Some(0));
}

/// A stream that would not end is cut off when the time to drain is over.
#[tokio::test]
async fn the_drain_is_bounded() {
    let slow = "--time-scale 1 --decode-step-base-ms 200";
    let mut plan = FleetPlan::unified(1).engines("", slow);
    plan.host.server = "drain_timeout_ms = 300".into();
    let mut fleet = plan.start().await.unwrap();
    let ask = Ask::completion("a longer story", 5_000).with("ignore_eos", true).streamed();
    let mut stream = fleet.client().stream(ask.endpoint.path(), &ask.json(), &[]).await.unwrap();
    stream.next().await.unwrap().expect("its first token");
    fleet.host.process().terminate().unwrap();
    let well_before_the_end = Duration::from_secs(15);
    assert_eq!(fleet.host.process().ended(well_before_the_end).await.unwrap(), Some(0));
}
