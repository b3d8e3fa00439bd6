//! Decode engines that are killed and started anew at the same address, again and again, under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluice_harness::{Client, FleetPlan, until};
use tokio::task::JoinSet;

use super::{PROMPT_WORDS, Way, as_before, counted, nonce};
use crate::{SOON, right};

const RESTARTS: usize = 50;

/// Requests at a time.
const CLIENTS: u64 = 6;

/// One of so many requests may be refused.
const LOST_AT_MOST: usize = 20;

/// How the requests of one client ended.
#[derive(Debug, Default)]
struct Ended {
    right: usize,
    /// Streams that ended in an error event.
    broken: usize,
    /// Told by an error status.
    refused: Vec<String>,
}

/// Asks until it is told to stop. A wrong answer is a panic.
async fn ask_on(client: Client, numbers: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> Ended {
    let mut ended = Ended::default();
    while !stop.load(Ordering::Relaxed) {
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let ask = nonce(number, PROMPT_WORDS, 24, number.is_multiple_of(2));
        let reply = client.ask(&ask).await.unwrap();
        let expected = ask.expected();
        match &reply.error {
            None => {
                assert_eq!(expected.differs_from(&reply), None, "{}", ask.json());
                ended.right += 1;
            }
            Some(error) if reply.status == 200 => {
                assert!(!reply.done && expected.text.starts_with(&reply.text), "{error}: {:?}", reply.text);
                ended.broken += 1;
            }
            Some(error) => ended.refused.push(error.to_string()),
        }
    }
    ended
}

#[tokio::test]
async fn nobody_gets_a_wrong_answer() {
    // Without gates: a port whose process is gone refuses.
    let plan = FleetPlan { gated: false, ..Way::Early.plan(2) };
    let mut fleet = plan.start().await.unwrap();
    let (numbers, stop) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicBool::new(false)));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(ask_on(fleet.client().clone(), numbers.clone(), stop.clone()));
    }
    for restart in 0..RESTARTS {
        let name = ["decode-0", "decode-1"][restart % 2];
        let before = fleet.worker(name).state().await.unwrap()["engine_id"].clone();
        // It has to do with requests when it dies.
        until("a request on it", SOON, async || {
            (fleet.host.worker(name).await.ok()?["booked"]["requests"].as_u64()? > 0).then_some(())
        })
        .await
        .unwrap();
        fleet.restart(name).await.unwrap();
        assert_ne!(fleet.worker(name).state().await.unwrap()["engine_id"], before);
        fleet.host.until_ready().await.unwrap();
        // Engines that die faster than requests last would prove nothing.
        let ok = [("outcome", "ok")];
        let served = fleet.host.metrics().await.unwrap().sum("sluice_requests_total", &ok);
        let more = |count: f64| count >= served + CLIENTS as f64;
        fleet.host.until_metric("sluice_requests_total", &ok, more, SOON).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let mut all = Ended::default();
    while let Some(ended) = clients.join_next().await {
        let Ended { right, broken, refused } = ended.expect("no wrong answer");
        all.right += right;
        all.broken += broken;
        all.refused.extend(refused);
    }
    let Ended { right: served, broken, refused } = all;
    // A restart breaks the streams that are on that engine, at most. What failed before is tried again, as far as
    // attempts and the budget for them go: 50 deaths in so few requests are about what it allows.
    assert!(
        broken <= RESTARTS * CLIENTS as usize && served > 4 * RESTARTS,
        "{served} right, {broken} broken"
    );
    assert!(refused.len() <= served / LOST_AT_MOST, "{served} right, refused: {refused:?}");
    counted(&fleet, "sluice_requests_total", &[("outcome", "ok")], served as f64).await;
    counted(&fleet, "sluice_requests_total", &[], (served + broken + refused.len()) as f64).await;

    as_before(&fleet, &[], 1).await;
    let mut number = 4_000_000;
    until("both decode engines to serve again", SOON, async || {
        number += 1;
        right(fleet.client(), &nonce(number, PROMPT_WORDS, 2, true)).await;
        for name in ["decode-0", "decode-1"] {
            if fleet.worker(name).state().await.ok()?["kv_reads"]["done"] == 0 {
                return None;
            }
        }
        Some(())
    })
    .await
    .unwrap();
}
