//! A prefill engine that is well to every probe and computes prompts, and whose KV nobody can fetch.

use std::net::{SocketAddr, TcpListener};

use sluice_harness::{Answers, Fleet, until};

use super::points::let_all_pass;
use super::{PROMPT_WORDS, Way, as_before, each, nonce};
use crate::{SOON, right};

/// What its KV socket does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hole {
    /// Takes connections and never answers: decode waits for ever, as vLLM does.
    Silent,
    /// Closes them: decode answers that the KV could not be loaded.
    Closes,
}

impl Hole {
    fn opens(self, fleet: &mut Fleet) {
        let kv = &fleet.gates("prefill-0").kv;
        match self {
            Self::Silent => kv.answers(Answers::Held),
            Self::Closes => {
                let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
                kv.leads_to(nobody);
            }
        }
    }
}

/// The request that meets it is served by another pair at once; the pairs are avoided after a few; and they are used
/// again once they work: which of them first is the policy's to say.
async fn is_avoided(number: u64, (hole, way): (Hole, Way)) {
    let mut fleet = way.plan(2).pool("decode_first_byte_ms = 400\n").start().await.unwrap();
    let kv: SocketAddr =
        fleet.worker("prefill-0").state().await.unwrap()["kv"].as_str().unwrap().parse().unwrap();
    hole.opens(&mut fleet);
    let (opened, open) = ("sluice_pair_breaker_opened_total", "sluice_pair_breakers_open");
    let mut asked = number * 1_000;
    until("both pairs of the prefill worker to be avoided", SOON, async || {
        asked += 1;
        right(fleet.client(), &nonce(asked, PROMPT_WORDS, 2, asked.is_multiple_of(2))).await;
        (fleet.host.metrics().await.ok()?.sum(open, &[]) == 2.0).then_some(())
    })
    .await
    .unwrap();
    let metrics = fleet.host.metrics().await.unwrap();
    let failed = metrics.sum("sluice_leg_failures_total", &[]);
    assert!(failed >= 6.0, "three failures in a row of each pair: {failed}");
    assert_eq!(metrics.sum("sluice_retries_total", &[]), failed, "each was tried again once");
    let served = metrics.sum("sluice_requests_total", &[("outcome", "ok")]);
    assert!(
        served == (asked - number * 1_000) as f64 && served >= failed,
        "{served} served, {failed} retries"
    );
    assert_eq!(metrics.sum("sluice_transfers_total", &[("handle", "stranded")]), failed);

    fleet.gates("prefill-0").kv.leads_to(kv);
    let_all_pass(&mut fleet);
    until("the prefill worker to be fetched from again", SOON, async || {
        // Several at a time, so that no policy can do without it.
        let ask = [1, 2, 3, 4].map(|more| nonce(asked + more, PROMPT_WORDS, 2, true));
        let [first, second, third, fourth] = ask.each_ref().map(|ask| right(fleet.client(), ask));
        tokio::join!(first, second, third, fourth);
        asked += 4;
        (fleet.host.metrics().await.ok()?.sum(open, &[]) < 2.0).then_some(())
    })
    .await
    .unwrap();
    assert!(fleet.host.metrics().await.unwrap().sum(opened, &[]) >= 2.0);
    as_before(&fleet, &[], number).await;
}

#[tokio::test]
async fn a_pair_that_moves_nothing_is_avoided_until_it_does() {
    let ways = [Way::Early, Way::Late];
    let cases = [Hole::Silent, Hole::Closes].into_iter().flat_map(|hole| ways.map(|way| (hole, way)));
    each(cases.collect(), is_avoided).await;
}

/// A pair that is alone: clients are told that the transfer failed, and of the prefill worker by name.
#[tokio::test]
async fn with_no_other_pair_the_transfer_is_to_blame() {
    let mut fleet = Way::Early.plan(1).pool("decode_first_byte_ms = 200\n").start().await.unwrap();
    Hole::Silent.opens(&mut fleet);
    let reply = fleet.client().ask(&nonce(1, PROMPT_WORDS, 2, true)).await.unwrap();
    assert_eq!(
        (reply.status, reply.error_member("code").as_str()),
        (504, Some("timeout")),
        "{:?}",
        reply.error
    );
    let message = reply.error_member("message");
    assert!(message.as_str().unwrap().contains("prefill-0"), "{message}");
    let failed = [("outcome", "transfer_failed")];
    assert_eq!(fleet.host.metrics().await.unwrap().sum("sluice_requests_total", &failed), 1.0);
    let_all_pass(&mut fleet);
    as_before(&fleet, &[], 1).await;
}
