//! Handles that outlive their blocks: past the lease, or past the engine that gave them.

use sluice_harness::until;

use super::points::{Point, bring, let_all_pass, start};
use super::{LEASE_MS, PROMPT_WORDS, Way, as_before, counted, each, handles, nonce, until_state};
use crate::{SOON, right};

/// A handle is good for 1 s in the host's eyes (the lease less 3 s), and the engine keeps the blocks a little longer.
const HOST_LEASE: &str = "kv_lease_ms = 4000";
const ENGINE_LEASE: &str = "--kv-lease-ms 1500";

/// The answer's head came in time and its end did not: the blocks may be another request's by then.
async fn past_its_lease(number: u64, (way, streams): (Way, bool)) {
    let mut plan = way.plan(1).engines("prefill", ENGINE_LEASE);
    plan.host.pool = plan.host.pool.replace(&format!("kv_lease_ms = {LEASE_MS}"), HOST_LEASE);
    let mut fleet = plan.start().await.unwrap();
    let ask = nonce(number, PROMPT_WORDS, 8, streams);
    let underway = bring(&mut fleet, Point::PrefillHead, &ask).await;
    until_state(&fleet, "prefill-0", "/holds/expired", |expired| expired == 1).await;
    let_all_pass(&mut fleet);
    let came = underway.ended(&ask).await;
    assert!(came.is_whole && came.text == ask.expected().text, "{:?}: {:?}", came.error, came.text);
    counted(&fleet, "sluice_retries_total", &[("reason", "handle_expired")], 1.0).await;
    assert_eq!(handles(&fleet).await, [("dispatched", 1), ("expired", 1)].into());
    // Nothing stale was read, and nobody is blamed.
    until_state(&fleet, "decode-0", "/kv_reads/failed", |failed| failed == 0).await;
    until_state(&fleet, "decode-0", "/kv_reads/done", |done| done == 1).await;
    counted(&fleet, "sluice_leg_failures_total", &[], 0.0).await;
    as_before(&fleet, &[], number).await;
}

/// The engine at the address that a handle names is another one by the time decode asks it: it is not read from.
async fn past_its_engine(number: u64, (way, streams): (Way, bool)) {
    let mut fleet = way.plan(1).start().await.unwrap();
    let ask = nonce(number, PROMPT_WORDS, 8, streams);
    fleet.gates("prefill-0").kv.swallow_connections().await.unwrap();
    let underway = start(&fleet, &ask);
    until_state(&fleet, "decode-0", "/sequences/loading", |loading| loading == 1).await;
    fleet.restart("prefill-0").await.unwrap();
    let_all_pass(&mut fleet);
    let came = underway.ended(&ask).await;
    assert!(came.is_whole && came.text == ask.expected().text, "{:?}: {:?}", came.error, came.text);
    until_state(&fleet, "decode-0", "/kv_reads/failed", |failed| failed == 1).await;
    counted(&fleet, "sluice_retries_total", &[], 1.0).await;
    as_before(&fleet, &[], number).await;
}

const EACH: [(Way, bool); 4] =
    [(Way::Early, true), (Way::Early, false), (Way::Late, true), (Way::Late, false)];

#[tokio::test]
async fn a_handle_past_its_lease_is_prefilled_again() {
    each(EACH.to_vec(), past_its_lease).await;
}

#[tokio::test]
async fn a_handle_of_an_engine_that_is_no_more_is_not_read() {
    each(EACH.to_vec(), past_its_engine).await;
}

/// What is remembered of a conversation is worth nothing once its engines were restarted.
#[tokio::test]
async fn a_conversation_goes_on_after_restarts() {
    let mut fleet = Way::Early.plan(1).start().await.unwrap();
    let first = nonce(1, PROMPT_WORDS, 8, false);
    let reply = right(fleet.client(), &first.clone().with("conversation_id", "c")).await;
    let said = first.json()["prompt"].as_str().unwrap().to_owned();
    let more = sluice_harness::Ask::completion(&format!("{said}{} and on", reply.text), 8);
    for name in ["prefill-0", "decode-0"] {
        fleet.restart(name).await.unwrap();
    }
    fleet.host.until_ready().await.unwrap();
    until("a connection to the new engines", SOON, async || {
        let reply = fleet.client().ask(&nonce(2, 4, 2, false)).await.ok()?;
        (reply.status == 200).then_some(())
    })
    .await
    .unwrap();
    let reply = right(fleet.client(), &more.with("conversation_id", "c")).await;
    assert_eq!(reply.cached_tokens, 0, "the new engine has nothing of it");
    as_before(&fleet, &[], 1).await;
}
