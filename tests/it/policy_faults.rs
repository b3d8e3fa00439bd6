//! Policies that fail in production: the host's default decides, the request is served, and the fault has a name.

use sluice_harness::process::run_to_end;
use sluice_harness::{Ask, Fleet, FleetPlan, PolicyFile};

use crate::{SOON, right};

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

/// Requests in a mood that the policy traps in, until it is put aside; all are served.
async fn until_put_aside(fleet: &Fleet) {
    for _ in 0..5 {
        let reply = right(fleet.client(), &Ask::completion("how are you", 4).header("x-mood", "trap")).await;
        assert_eq!(reply.decision.unwrap().source, "fault");
    }
}

async fn moody_fleet() -> Fleet {
    let guest = PolicyFile::guest("moody", "on-demand").unwrap();
    let mut plan = FleetPlan::pull(1, 1).decided_by(guest);
    plan.host.policy_keys = "labels = [\"x-mood\"]".into();
    plan.start().await.unwrap()
}

/// A policy that fails too often is put aside, loudly: its last good version decides the next request already.
#[tokio::test]
async fn the_last_good_version_takes_over_from_one_that_fails_too_often() {
    let fleet = moody_fleet().await;
    let first = fleet.host.policies().await.unwrap();
    let file = PolicyFile::guest("moody", "on-demand").unwrap();
    fleet.host.drop_policy(&file.clone().marked(1)).unwrap();
    let second = fleet.host.until_generation_after(first.generation, SOON).await.unwrap();
    until_put_aside(&fleet).await;

    let decision = right(fleet.client(), &Ask::completion("and now", 4)).await.decision.unwrap();
    assert_eq!((decision.source.as_str(), decision.generation), ("last-good", second + 1));
    assert_eq!(decision.policy, "moody");
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_policy_put_aside_total", &[("policy", "moody")]), 1.0);
    assert_eq!(metrics.sum("sluice_fallbacks_total", &[("reason", "policy_put_aside")]), 1.0);
    let kinds = [("policy", "moody"), ("kind", "last-good")];
    assert_eq!(metrics.sum("sluice_decisions_total", &kinds), 1.0);
    assert!(fleet.host.log_tells("policy put aside, its last good version"), "{}", fleet.host.log());

    let listed = fleet.host.policies().await.unwrap().named("moody").unwrap().clone();
    assert_eq!(
        (listed.state.as_str(), &listed.instead),
        ("put-aside", &first.named("moody").unwrap().digest)
    );
    let why = listed.put_aside.unwrap();
    assert!(why.contains("5 of its last 5 calls failed") && why.contains("stays aside until"), "{why}");
    let admin = fleet.host.admin().base().trim_start_matches("http://").to_owned();
    let list = run_to_end(&["policy", "list", "--admin", &admin], SOON).await.unwrap().stdout;
    assert!(list.contains("put-aside") && list.contains("decides instead: 5 of its last 5"), "{list}");

    // Another file of that name gets a fresh chance.
    fleet.host.drop_policy(&file.marked(2)).unwrap();
    let third = fleet.host.until_generation_after(second + 1, SOON).await.unwrap();
    let decision = right(fleet.client(), &Ask::completion("a fresh chance", 4)).await.decision.unwrap();
    assert_eq!((decision.source.as_str(), decision.generation), ("policy", third));
}

/// The first version has none to fall back on.
#[tokio::test]
async fn without_a_good_version_the_built_in_default_decides() {
    let fleet = moody_fleet().await;
    until_put_aside(&fleet).await;
    let decision = right(fleet.client(), &Ask::completion("and now", 4)).await.decision.unwrap();
    assert_eq!((decision.policy.as_str(), decision.source.as_str()), ("moody", "put-aside"));
    let listed = fleet.host.policies().await.unwrap().named("moody").unwrap().clone();
    assert_eq!((listed.state.as_str(), listed.instead), ("put-aside", None));
    let ready = fleet.host.admin().get("/ready").await.unwrap().json();
    assert_eq!(
        (&ready["policy"]["in_force"], &ready["policy"]["put_aside"]),
        (&"builtin".into(), &true.into())
    );
    assert!(fleet.host.log_tells("policy put aside, the built-in default decides instead"));
}
