//! `bindings.toml` in the policy folder: which policy decides for which requests, live.

use sluice_harness::process::run_to_end;
use sluice_harness::{Ask, Decision, Fleet, FleetPlan, Host, PolicyFile, until};

use crate::{SOON, right};

const BATCH: &str = r#"
[[workload]]
name = "batch"
match = { header = { name = "x-workload", value = "batch" } }
policy = "second"

[[workload]]
name = "chat"
match = { path_prefix = "/v1/chat" }
policy = "builtin"
"#;

/// A policy that says by which file it was loaded.
fn tagged(name: &str) -> PolicyFile {
    PolicyFile::guest(name, "tagged").unwrap().settings(&format!("tag = \"{name}\""))
}

async fn fleet() -> Fleet {
    let mut plan = FleetPlan::unified(1).decided_by(tagged("first"));
    plan.policies.push(tagged("second"));
    plan.start().await.unwrap()
}

async fn decision(fleet: &Fleet, ask: Ask) -> Decision {
    right(fleet.client(), &ask).await.decision.unwrap()
}

fn batch() -> Ask {
    Ask::completion("sort these", 4).header("x-workload", "batch")
}

fn chat() -> Ask {
    Ask::question("hello", 4)
}

async fn bind(host: &Host, text: &str) -> u64 {
    let before = host.policies().await.unwrap().generation;
    host.drop_settings("bindings", text).unwrap();
    host.until_generation_after(before, SOON).await.unwrap()
}

async fn state(host: &Host, policy: &str) -> String {
    host.policies().await.unwrap().named(policy).map(|listed| listed.state.clone()).unwrap_or_default()
}

#[tokio::test]
async fn the_first_binding_that_matches_says_who_decides() {
    let fleet = fleet().await;
    assert_eq!(decision(&fleet, batch()).await.policy, "first", "nothing is bound yet");
    bind(&fleet.host, BATCH).await;
    for (ask, workload, policy, reason) in [
        (batch(), "batch", "second", "second"),
        (chat(), "chat", "builtin", ""),
        (Ask::completion("hello", 4), "default", "first", "first"),
        (chat().header("x-workload", "batch"), "batch", "second", "second"),
    ] {
        let found = decision(&fleet, ask).await;
        assert_eq!((found.workload.as_str(), found.policy.as_str()), (workload, policy));
        assert!(found.reason.starts_with(reason), "{found:?}");
    }
    // Each policy's decisions are counted under its name.
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_decisions_total", &[("policy", "second"), ("kind", "policy")]), 2.0);
    assert_eq!(metrics.sum("sluice_decisions_total", &[("policy", "builtin"), ("kind", "builtin")]), 1.0);

    // The file goes, and with it all bindings.
    let before = fleet.host.policies().await.unwrap().generation;
    std::fs::remove_file(fleet.host.policy_folder().join("bindings.toml")).unwrap();
    fleet.host.until_generation_after(before, SOON).await.unwrap();
    assert_eq!(decision(&fleet, batch()).await.policy, "first");
}

/// `sequence` counts a workload's own decisions: another's requests do not turn its wheel.
#[tokio::test]
async fn workloads_take_turns_apart() {
    let mut plan = FleetPlan::unified(2).decided_by(PolicyFile::policy("first", "round-robin").unwrap());
    plan.policies.push(PolicyFile::policy("second", "round-robin").unwrap());
    let fleet = plan.start().await.unwrap();
    bind(&fleet.host, BATCH).await;
    let mut batches = Vec::new();
    for _ in 0..4 {
        decision(&fleet, Ask::completion("between", 2)).await;
        batches.push(decision(&fleet, batch()).await.decode);
    }
    assert!(batches[0] != batches[1] && batches[0] == batches[2] && batches[1] == batches[3], "{batches:?}");
}

/// A file that cannot be used changes nothing, and says by line what is wrong.
#[tokio::test]
async fn bad_bindings_leave_the_last_good_ones() {
    let fleet = fleet().await;
    bind(&fleet.host, BATCH).await;
    fleet
        .host
        .drop_settings("bindings", "[[workload]]\nname = \"batch\"\nmatch = {}\npolicy = \"first\"\n")
        .unwrap();
    let refusal = until("the bindings to be refused", SOON, async || {
        let listed = fleet.host.admin().get("/admin/policies").await.ok()?.json();
        listed["bindings"]["refusal"].as_str().map(str::to_owned)
    })
    .await
    .unwrap();
    assert!(refusal.contains("bindings.toml:3: workload \"batch\" matches every request"), "{refusal}");
    assert_eq!(decision(&fleet, batch()).await.policy, "second");
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_policy_refusals_total", &[("policy", "bindings")]), 1.0);
    assert!(fleet.host.log_tells("workload bindings refused"), "{}", fleet.host.log());
}

/// The output of a command that asks a host.
async fn told(host: &Host, command: &str) -> String {
    let asked = ["policy", command, "--admin", host.admin().base()];
    let ended = run_to_end(&asked, SOON).await.unwrap();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

/// Bindings that can be used and yet do not do what was meant, for a typo, are told where people look.
#[tokio::test]
async fn typos_in_bindings_are_told_with_what_was_meant() {
    let fleet = fleet().await;
    let small = "\n[[workload]]\nname = \"small\"\nmatch = { model = \"emulatid\" }\npolicy = \"first\"\n";
    bind(&fleet.host, &(BATCH.replace("second", "secnd") + small)).await;
    let shown = told(&fleet.host, "bindings").await;
    let rows: Vec<Vec<_>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    let of = |row: usize| rows[row][..2].join(" ");
    assert_eq!([of(2), of(3), of(4), of(5)], ["1 batch", "2 chat", "3 small", "4 default"], "{shown}");
    let (policy, model) =
        ("did you mean \"second\"?", "no pool serves model \"emulatid\"; did you mean \"emulated\"?");
    for (row, parts) in [
        (2, &["header x-workload: batch", " secnd ", " 2 ", "missing", policy][..]),
        (3, &["path_prefix /v1/chat", " builtin ", " 7 ", "built-in"]),
        (4, &["model emulatid", " first ", " 12 ", "loaded", model]),
        (5, &["all others", " first ", "loaded"]),
    ] {
        let line = shown.lines().nth(row).unwrap();
        assert!(parts.iter().all(|part| line.contains(part)), "{parts:?} are not in {line:?}");
    }
    let listed = told(&fleet.host, "list").await;
    assert!(
        listed.contains(policy) && listed.contains(&format!("workload small: nothing matches: {model}")),
        "{listed}"
    );
    let said = |what: &str| fleet.host.log().matches(what).count();
    assert_eq!(
        (said(policy), said("a binding can be used, but nothing matches")),
        (1, 1),
        "{}",
        fleet.host.log()
    );
    // The same bindings in another generation are no news; a mend forgets them, so that they would be again.
    bind(&fleet.host, &(BATCH.to_owned() + small)).await;
    assert_eq!(said("a binding can be used"), 1);
    bind(&fleet.host, BATCH).await;
    assert!(!told(&fleet.host, "bindings").await.contains("did you mean"));
}

/// What a workload is bound to stays when its file goes, until the workload is bound to another.
#[tokio::test]
async fn a_bound_policy_outlasts_its_file() {
    let fleet = fleet().await;
    bind(&fleet.host, BATCH).await;
    fleet.host.remove_policy("second").unwrap();
    until("the removal to be seen", SOON, async || {
        (state(&fleet.host, "second").await == "removed-but-bound").then_some(())
    })
    .await
    .unwrap();
    let found = decision(&fleet, batch()).await;
    assert_eq!((found.policy.as_str(), found.source.as_str()), ("second", "policy"));
    bind(&fleet.host, &BATCH.replace("second", "first")).await;
    assert_eq!(decision(&fleet, batch()).await.policy, "first");
    assert_eq!(state(&fleet.host, "second").await, "settings-only", "nobody is bound to it any more");
}

/// A binding may come before its policy: the built-in default decides until then, visibly.
#[tokio::test]
async fn a_binding_may_come_before_its_policy() {
    let fleet = fleet().await;
    bind(&fleet.host, &BATCH.replace("second", "third")).await;
    assert_eq!(state(&fleet.host, "third").await, "missing");
    let found = decision(&fleet, batch()).await;
    assert_eq!((found.policy.as_str(), found.source.as_str()), ("third", "not-loaded"));
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_fallbacks_total", &[("reason", "policy_not_loaded")]), 1.0);
    let before = fleet.host.policies().await.unwrap().generation;
    fleet.host.drop_policy(&tagged("third")).unwrap();
    fleet.host.until_generation_after(before, SOON).await.unwrap();
    assert_eq!(decision(&fleet, batch()).await.source, "policy");
}
