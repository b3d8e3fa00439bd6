//! `sluice policy show` and `explain`, and the admin API behind them: who decided what, and why.

use serde_json::Value;
use sluice_harness::process::run_to_end;
use sluice_harness::{Ask, Fleet, FleetPlan, PolicyFile};

use crate::{SOON, right};

/// The output of a command that asks a fleet's host.
async fn asked(fleet: &Fleet, command: &[&str]) -> String {
    let admin = fleet.host.admin().base().to_owned();
    let ended = run_to_end(&[command, &["--admin", &admin]].concat(), SOON).await.unwrap();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

async fn decisions(fleet: &Fleet, query: &str) -> Vec<Value> {
    let answer = fleet.host.admin().get(&format!("/admin/decisions{query}")).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["decisions"].as_array().unwrap().clone()
}

fn named(id: &str) -> Ask {
    Ask::completion("why did this go there", 4).header("x-request-id", id)
}

#[tokio::test]
async fn a_decision_is_explained() {
    let fleet = FleetPlan::pull(1, 1)
        .decided_by(PolicyFile::policy("rr", "round-robin").unwrap())
        .start()
        .await
        .unwrap();
    right(fleet.client(), &named("first/1")).await;
    let reply = right(fleet.client(), &named("second 2")).await;
    let header = reply.decision.unwrap();
    let found = decisions(&fleet, "?request=second%202").await;
    assert_eq!(found.len(), 1, "{found:?}");
    let told = &found[0];
    for (key, expected) in [
        ("client_request", "second 2"),
        ("model", "emulated"),
        ("pool", "main"),
        ("workload", "default"),
        ("policy", "rr"),
        ("module", "round-robin"),
        ("version", &header.version),
        ("source", "policy"),
        ("placement", "disaggregated"),
        ("prefill", "prefill-0"),
        ("decode", "decode-0"),
        ("reason", &header.reason),
    ] {
        assert_eq!(told[key], expected, "{key} of {told}");
    }
    assert_eq!((&told["rows"], &told["attempt"], &told["fault"]), (&2.into(), &0.into(), &Value::Null));
    assert_eq!(told["generation"], header.generation);
    assert!(told["prompt_tokens"].as_u64().unwrap() > 0 && told["at_ms"].as_u64().unwrap() > 0);
    // Our own id finds it as well, and the newest comes first.
    let ours = told["request"].as_str().unwrap();
    assert_eq!(decisions(&fleet, &format!("?request={ours}")).await, found);
    assert_eq!(decisions(&fleet, "?last=1").await, found);
    assert_eq!(decisions(&fleet, "").await.len(), 2);
    assert_eq!(fleet.host.admin().get("/admin/decisions?last=0").await.unwrap().status, 400);

    let shown = asked(&fleet, &["policy", "explain", "--request", "first/1"]).await;
    assert!(shown.contains("prefill-0 -> decode-0") && !shown.contains("second"), "{shown}");
    let json = asked(&fleet, &["policy", "explain", "--last", "1", "--json"]).await;
    let json: Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!(&json, told);
}

/// A file that is replaced decides no less under its name: what it was when it decided stays with the decision.
#[tokio::test]
async fn an_old_decision_tells_the_module_that_decided_then() {
    let fleet = FleetPlan::unified(1)
        .decided_by(PolicyFile::policy("main", "round-robin").unwrap())
        .start()
        .await
        .unwrap();
    let before = right(fleet.client(), &named("before")).await.decision.unwrap();
    let generation = fleet.host.policies().await.unwrap().generation;
    fleet.host.drop_policy(&PolicyFile::policy("main", "least-loaded").unwrap()).unwrap();
    fleet.host.until_generation_after(generation, SOON).await.unwrap();
    right(fleet.client(), &named("after")).await;
    let told = decisions(&fleet, "").await;
    let of = |key: &str| told.iter().map(|told| told[key].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(
        (of("policy"), of("module")),
        (vec!["main".into(); 2], vec!["least-loaded".into(), "round-robin".into()])
    );
    let shown = asked(&fleet, &["policy", "explain", "--request", "before"]).await;
    assert!(shown.contains(&format!("main    round-robin {}  ", before.version)), "{shown}");
}

/// What came of a policy that fails, refuses, or leaves decode open until the prefill is done.
#[tokio::test]
async fn faults_refusals_and_late_binding_are_explained() {
    let mut plan = FleetPlan::pull(1, 1).decided_by(PolicyFile::guest("moody", "on-demand").unwrap());
    plan.host.policy_keys = "labels = [\"x-mood\"]".into();
    plan.policies.push(PolicyFile::guest("late", "late-binding").unwrap());
    let fleet = plan.start().await.unwrap();
    right(fleet.client(), &named("a").header("x-mood", "trap")).await;
    fleet.client().ask(&named("b").header("x-mood", "reject")).await.unwrap();
    let before = fleet.host.policies().await.unwrap().generation;
    let late = "[[workload]]\nname = \"late\"\nmatch = { path_prefix = \"/v1/\" }\npolicy = \"late\"\n";
    fleet.host.drop_settings("bindings", late).unwrap();
    fleet.host.until_generation_after(before, SOON).await.unwrap();
    right(fleet.client(), &named("c")).await;
    let told = decisions(&fleet, "").await;
    let told: Vec<_> = ["workload", "policy", "source", "fault", "placement", "decode"]
        .map(|key| told.iter().map(|told| told[key].as_str().unwrap_or("-")).collect::<Vec<_>>().join(" "))
        .into_iter()
        .collect();
    assert_eq!(
        told,
        [
            "late default default",
            "late moody moody",
            "policy reject fault",
            "- - trap",
            "disaggregated rejected disaggregated",
            "decode-0 - decode-0",
        ]
    );
}

#[tokio::test]
async fn a_policy_is_shown_in_full() {
    let policy = PolicyFile::policy("ll", "least-loaded").unwrap().settings("waiting_weight = 9\n");
    let fleet = FleetPlan::unified(1).decided_by(policy.clone()).start().await.unwrap();
    let binding = "[[workload]]\nname = \"ads\"\nmatch = { tenant = \"ads\" }\npolicy = \"ll\"\n";
    fleet.host.drop_settings("bindings", binding).unwrap();
    let after = fleet.host.until_generation_after(1, SOON).await.unwrap();
    right(fleet.client(), &Ask::completion("hello", 4)).await;
    // Settings that do not fit their schema are refused by key and line, and change nothing.
    fleet.host.drop_settings("ll", "# too much\nwaiting_weight = 5000\n").unwrap();
    let refused = fleet.host.until_refused("ll", SOON).await.unwrap();
    let told = "ll.toml: line 2: `waiting_weight` is 5000; it takes a whole number from 0 to 1000";
    assert!(refused.refusal.as_ref().unwrap().ends_with(told), "{refused:?}");
    assert_eq!(
        (refused.state.as_str(), refused.refusal_kind.as_deref()),
        ("loaded", Some("settings-misfit"))
    );
    let sheet = asked(&fleet, &["policy", "show", "ll"]).await;
    for part in
        ["least-loaded", "ads, and all that no binding matches", "waiting_weight  9 ", "tenant ads", told]
    {
        assert!(sheet.contains(part), "{part:?} is not in\n{sheet}");
    }
    // Good ones are in force at once, and the version before them is remembered.
    fleet.host.drop_settings("ll", "waiting_weight = 7\n").unwrap();
    fleet.host.until_generation_after(after, SOON).await.unwrap();
    let shown = fleet.host.admin().get("/admin/policies/ll").await.unwrap().json();
    assert_eq!(
        (&shown["settings"][0]["value"], &shown["settings"][0]["is_written"]),
        (&7.into(), &true.into())
    );
    assert_eq!((&shown["earlier"][0]["since_generation"], &shown["refusal"]), (&1.into(), &Value::Null));
    assert_eq!(fleet.host.admin().get("/admin/policies/nobody").await.unwrap().status, 404);
}
