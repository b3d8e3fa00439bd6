//! A request keeps the policies it began with, for as many swaps as the host keeps them; after that the built-in default
//! answers for them, visibly.

use sluice_harness::{Answers, Ask, Client, FleetPlan, Host, PolicyFile, until};
use tokio::task::JoinSet;

use crate::{SOON, right};

/// More swaps than any request's policies outlast.
const SWAPS: u64 = 20;

/// Other bindings: a swap that compiles nothing.
async fn swap(host: &Host, number: u64) {
    let before = host.policies().await.unwrap().generation;
    let text = format!(
        "[[workload]]\nname = \"w{number}\"\nmatch = {{ tenant = \"nobody\" }}\npolicy = \"builtin\"\n"
    );
    host.drop_settings("bindings", &text).unwrap();
    host.until_generation_after(before, SOON).await.unwrap();
}

/// Holds a request's prefill, replaces its policy, swaps so often, and lets it go on. Says who bound decode.
async fn source_after(swaps: u64) -> (String, Host) {
    let late = PolicyFile::guest("late", "late-binding").unwrap();
    let mut fleet = FleetPlan::pull(1, 1).decided_by(late.clone()).gated().start().await.unwrap();
    fleet.gates("prefill-0").http.answers(Answers::HeldFrom("kv_transfer_params"));
    let client = Client::new(fleet.client().base());
    let mut requests = JoinSet::new();
    requests.spawn(async move { right(&client, &Ask::completion("a long wait", 4)).await });
    until("the prefill to be held", SOON, async || {
        (fleet.gates("prefill-0").http.holding() > 0).then_some(())
    })
    .await
    .unwrap();
    // Twice: the version just before the one in force is kept in reserve.
    for (mark, generation) in [(1, 1), (2, 2)] {
        fleet.host.drop_policy(&late.clone().marked(mark)).unwrap();
        fleet.host.until_generation_after(generation, SOON).await.unwrap();
    }
    for number in 0..swaps {
        swap(&fleet.host, number).await;
    }
    fleet.gates("prefill-0").http.answers(Answers::Pass);
    let decision = requests.join_next().await.unwrap().unwrap().decision.unwrap();
    assert_eq!((decision.policy.as_str(), decision.generation), ("late", 1), "the generation it began with");
    (decision.source, fleet.host)
}

#[tokio::test]
async fn a_replaced_policy_still_answers_for_its_requests() {
    let (source, host) = source_after(1).await;
    assert_eq!(source, "policy");
    assert_eq!(host.metrics().await.unwrap().sum("sluice_policy_faults_total", &[]), 0.0);
}

#[tokio::test]
async fn an_expired_policy_gives_way_to_the_default() {
    let (source, host) = source_after(SWAPS).await;
    assert_eq!(source, "fault");
    let metrics = host.metrics().await.unwrap();
    let expired = [("policy", "late"), ("hook", "bind-decode"), ("kind", "expired")];
    assert_eq!(metrics.sum("sluice_policy_faults_total", &expired), 1.0);
    assert_eq!(metrics.sum("sluice_fallbacks_total", &[("reason", "bind_decode_fault")]), 1.0);
    assert!(host.log_tells("swaps have left behind"), "{}", host.log());
    let explained = host.admin().get("/admin/decisions?last=1").await.unwrap().json();
    assert_eq!(
        ["source", "fault", "decode"].map(|member| explained["decisions"][0][member].as_str()),
        [Some("fault"), Some("expired"), Some("decode-0")]
    );
}
