//! SIGTERM: what is under way ends, nothing new begins, and the exit code says that all is well.

use std::time::Duration;

use sluice_harness::workload::{self, WorkloadPlan};
use sluice_harness::{Ask, Client, FleetPlan, until};
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

/// Clients with keep-alive connections keep asking while the host goes: each answer is right, and the last one on each
/// connection says that it was. What comes later is refused before it is sent.
#[tokio::test]
async fn a_host_that_drains_under_load_loses_nothing() {
    let mut plan = FleetPlan::pull(1, 1).engines("", "--time-scale 1 --decode-step-base-ms 5");
    plan.host.server = "drain_delay_ms = 1500".into();
    let mut fleet = plan.start().await.unwrap();
    let base = fleet.client().base().to_owned();
    let asked = Ask::completion("a question", 4);
    let load = WorkloadPlan {
        conversations: 8,
        turns: 400,
        at_once: 8,
        first_words: 20,
        later_words: 1,
        max_tokens: 4,
        seed: 11,
    };
    let mut running = workload::start(fleet.client(), &load);
    for _ in 0..40 {
        let outcome = running.next().await.unwrap();
        assert!(!outcome.failed() && outcome.wrong.is_none(), "{outcome:?}");
    }
    fleet.host.process().terminate().unwrap();
    until("answers that close their connection", SOON, async || {
        let reply = Client::new(&base).ask(&asked).await.unwrap();
        assert_eq!(asked.expected().differs_from(&reply), None);
        (reply.headers.get("connection").is_some_and(|value| value == "close")).then_some(())
    })
    .await
    .unwrap();
    let (mut answered, mut refused) = (0, 0);
    while let Some(outcome) = running.next().await {
        match &outcome.reply {
            Ok(reply) => {
                assert!(reply.status == 200 && outcome.wrong.is_none(), "{outcome:?}");
                answered += 1;
            }
            // Nobody listens any more, which a client that balances meets before it sends anything.
            Err(error) => {
                assert!(error.contains("refused"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(answered >= 8 && refused == load.conversations, "{answered} answered, {refused} refused");
    assert_eq!(fleet.host.process().ended(SOON).await.unwrap(), Some(0));
}
