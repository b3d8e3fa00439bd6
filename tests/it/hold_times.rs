//! KV blocks that wait on a prefill worker: a handle is used in time or not at all, and what becomes of it is counted.

use std::time::Duration;

use serde_json::json;
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode, until};

use crate::{SOON, nothing_left_booked};

const BOTH: [&str; 2] = ["prefill-0", "decode-0"];

/// With this lease and the default `connect_timeout_ms` a handle is good for one millisecond.
const LEASE: &str = "kv_lease_ms = 3001\n";

async fn pair(pool: &str, prefill: &MockEngine, decode: &MockEngine) -> Host {
    let mut plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    plan.pool.push_str(pool);
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    host
}

/// The lease runs from the head of the prefill's answer: a body that is late makes the handle stale.
#[tokio::test]
async fn a_stale_handle_is_never_used() {
    let late = Duration::from_millis(20);
    let prefill = MockEngine::start(move |_| Canned::prefilled().body_after(late)).await.unwrap();
    let decode = MockEngine::well_behaved().await.unwrap();
    let host = pair(LEASE, &prefill, &decode).await;
    let asked = json!({"model": "emulated", "prompt": "hi"});
    let told = host.client().post("/v1/completions", &asked).await.unwrap();
    let code = told.json()["error"]["code"].clone();
    assert_eq!((told.status, code), (503, json!("handle_expired")), "{}", told.text());
    assert_eq!((prefill.seen().len(), decode.seen().len()), (4, 0));
    let metrics = host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_transfers_total", &[("handle", "expired")]), 4.0);
    assert_eq!(metrics.sum("sluice_retries_total", &[("reason", "handle_expired")]), 3.0);
    nothing_left_booked(&host, &BOTH).await;
    // Nobody gave up: each attempt ran to its end.
    assert_eq!(metrics.sum("sluice_transfers_total", &[("handle", "abandoned")]), 0.0);
    assert_eq!(metrics.sum("sluice_transfers_total", &[("handle", "dispatched")]), 0.0);
}

/// A client that leaves while its prompt is prefilled: the engine may have blocks for it that nobody will fetch.
#[tokio::test]
async fn a_client_that_leaves_during_prefill_leaves_blocks_behind() {
    for canned in [Canned::silence(), Canned::prefilled().body_after(SOON)] {
        let prefill = MockEngine::start(move |_| canned.clone()).await.unwrap();
        let decode = MockEngine::well_behaved().await.unwrap();
        let host = pair("", &prefill, &decode).await;
        let asked = json!({"model": "emulated", "prompt": "hi"});
        tokio::select! {
            answer = host.client().post("/v1/completions", &asked) => panic!("nothing can answer: {answer:?}"),
            begun = until("the prefill to begin", SOON, async || (prefill.seen().len() == 1).then_some(())) => {
                begun.unwrap();
            }
        }
        let abandoned = [("handle", "abandoned")];
        host.until_metric("sluice_transfers_total", &abandoned, |count| count == 1.0, SOON).await.unwrap();
        let cancelled = [("outcome", "cancelled")];
        host.until_metric("sluice_requests_total", &cancelled, |count| count == 1.0, SOON).await.unwrap();
        assert_eq!(decode.seen().len(), 0);
        nothing_left_booked(&host, &BOTH).await;
    }
}
