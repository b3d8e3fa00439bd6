//! Policies that fail in production: the host's default decides, the request is served, and the fault has a name.

use sluice_harness::{Ask, FleetPlan, PolicyFile};

use crate::right;

#[tokio::test]
async fn a_fault_is_counted_by_kind_and_the_request_is_served() {
    let guest = PolicyFile::guest("moody", "on-demand").unwrap();
    let mut plan = FleetPlan::pull(1, 1).decided_by(guest);
    plan.host.policy_keys = "labels = [\"x-mood\"]".into();
    let fleet = plan.start().await.unwrap();
    for (mood, kind) in [("trap", "trap"), ("loop", "cpu-deadline"), ("bad-row", "bad-row")] {
        let reply = right(fleet.client(), &Ask::completion("how are you", 4).header("x-mood", mood)).await;
        let decision = reply.decision.unwrap();
        assert_eq!((decision.policy.as_str(), decision.source.as_str()), ("moody", "fault"), "{mood}");
        assert_eq!(decision.placement, "disaggregated", "{mood}");
        let labels = [("policy", "moody"), ("hook", "route"), ("kind", kind)];
        let metrics = fleet.host.metrics().await.unwrap();
        assert_eq!(metrics.sum("sluice_policy_faults_total", &labels), 1.0, "{mood}");
        // The instance that failed is gone; the next call has a fresh one.
        let reply = right(fleet.client(), &Ask::completion("and now", 4)).await;
        assert_eq!(reply.decision.unwrap().source, "policy", "after {mood}");
    }
}

/// A policy may turn a request away: in its own words, in OpenAI's shape.
#[tokio::test]
async fn a_policy_may_refuse_a_request() {
    let guest = PolicyFile::guest("moody", "on-demand").unwrap();
    let mut plan = FleetPlan::unified(1).decided_by(guest);
    plan.host.policy_keys = "labels = [\"x-mood\"]".into();
    let fleet = plan.start().await.unwrap();
    let reply = fleet.client().ask(&Ask::completion("hello", 4).header("x-mood", "reject")).await.unwrap();
    assert_eq!((reply.status, reply.error_member("code")), (429, &"rejected_by_policy".into()));
    assert_eq!(reply.error_member("message"), "in that mood");
}

/// Headers that the configuration does not let through are not shown to policies.
#[tokio::test]
async fn policies_see_only_the_labels_that_are_configured() {
    let guest = PolicyFile::guest("moody", "on-demand").unwrap();
    let fleet = FleetPlan::unified(1).decided_by(guest).start().await.unwrap();
    let reply = right(fleet.client(), &Ask::completion("hello", 4).header("x-mood", "trap")).await;
    assert_eq!(reply.decision.unwrap().source, "policy");
}
