//! Policies as files: broken ones are refused with their own reason and change nothing, good ones decide at once.

use sluice_harness::process::run_to_end;
use sluice_harness::{Ask, Fleet, FleetPlan, PolicyFile, until};
use sluice_sim::words;

use crate::{SOON, right};

/// A policy that says by which file it was loaded.
fn tagged(tag: &str) -> PolicyFile {
    PolicyFile::guest("active", "tagged").unwrap().settings(&format!("tag = \"{tag}\""))
}

async fn reason(fleet: &Fleet) -> (String, String) {
    let decision = right(fleet.client(), &Ask::completion("who decides", 4)).await.decision.unwrap();
    (decision.source, decision.reason)
}

fn policy(reason: &str) -> (String, String) {
    ("policy".into(), reason.into())
}

#[tokio::test]
async fn broken_files_are_refused_and_the_old_policy_stays() {
    let fleet = FleetPlan::unified(1).decided_by(tagged("good")).start().await.unwrap();
    assert_eq!(reason(&fleet).await, policy("good"));
    let generation = fleet.host.policies().await.unwrap().generation;
    let wasm = tagged("").wasm;
    // Without the tag, which they do not take.
    let guest = |name| PolicyFile::guest("active", name).unwrap().settings("");
    let mut reasons = std::collections::BTreeSet::new();
    for (file, kind, told) in [
        (PolicyFile::new("active", wasm.clone()).truncated(), "truncated", "ends too early"),
        (PolicyFile::new("active", b"a text file\n".to_vec()), "not-wasm", "no WASM"),
        (PolicyFile::new("active", Vec::new()), "truncated", "0 bytes"),
        (guest("no-world"), "no-world", "world"),
        (guest("endless-configure"), "set-up", "`configure` did not end within"),
        (guest("trap-configure"), "set-up", "`configure` trapped"),
        (guest("bad-row"), "trial", "trial case"),
        (guest("impure"), "trial", "not pure"),
        (
            tagged("").settings("tga = \"typo\""),
            "settings-misfit",
            "line 1: `tga` is no setting of this policy; it takes `tag`",
        ),
    ] {
        fleet.host.drop_policy(&file).unwrap();
        let listed = until(&format!("refusal {kind} ({told})"), SOON, async || {
            let listed = fleet.host.policies().await.ok()?.named("active")?.clone();
            let message = listed.refusal.as_deref()?;
            (listed.refusal_kind.as_deref() == Some(kind) && message.contains(told)).then_some(listed)
        })
        .await;
        let Ok(listed) = listed else { panic!("{kind}: {:?}", fleet.host.policies().await) };
        assert_eq!(listed.state, "loaded", "{kind}: the last good version stays");
        let message = listed.refusal.unwrap();
        assert!(message.contains("active."), "the file is named: {message}");
        assert!(reasons.insert(message.clone()), "a reason of its own: {message}");
        assert_eq!(reason(&fleet).await, policy("good"), "{kind}");
        assert_eq!(
            fleet.host.policies().await.unwrap().generation,
            generation,
            "{kind}: nothing was swapped"
        );
    }
    let refusals =
        fleet.host.metrics().await.unwrap().sum("sluice_policy_refusals_total", &[("policy", "active")]);
    assert!(refusals >= reasons.len() as f64, "{refusals}");

    fleet.host.drop_policy(&tagged("better").marked(1)).unwrap();
    fleet.host.until_generation_after(generation, SOON).await.unwrap();
    assert_eq!(reason(&fleet).await, policy("better"));
    assert_eq!(fleet.host.policies().await.unwrap().named("active").unwrap().refusal, None);
}

/// A broken file that is no default's is listed as refused, and in nobody's way.
#[tokio::test]
async fn a_broken_file_beside_the_one_in_force() {
    let fleet = FleetPlan::unified(1).decided_by(tagged("good")).start().await.unwrap();
    fleet.host.drop_policy(&PolicyFile::new("broken", tagged("").wasm).truncated()).unwrap();
    let listed = fleet.host.until_refused("broken", SOON).await.unwrap();
    assert_eq!((listed.state.as_str(), listed.digest), ("refused", None));
    assert_eq!(reason(&fleet).await, policy("good"));
    assert!(fleet.host.log_tells("broken"), "the log names it");
}

/// New settings are a new policy: no new code is needed.
#[tokio::test]
async fn new_settings_come_into_force() {
    let fleet = FleetPlan::unified(1).decided_by(tagged("one")).start().await.unwrap();
    let generation = fleet.host.policies().await.unwrap().generation;
    std::fs::write(fleet.host.policy_folder().join("active.toml"), "tag = \"two\"").unwrap();
    fleet.host.until_generation_after(generation, SOON).await.unwrap();
    assert_eq!(reason(&fleet).await, policy("two"));
}

#[tokio::test]
async fn a_bound_policy_whose_file_is_removed_stays_in_force() {
    let fleet = FleetPlan::unified(1).decided_by(tagged("good")).start().await.unwrap();
    fleet.host.remove_policy("active").unwrap();
    until("the removal to be seen", SOON, async || {
        let listed = fleet.host.policies().await.ok()?;
        (listed.named("active")?.state == "removed-but-bound").then_some(())
    })
    .await
    .unwrap();
    assert_eq!(reason(&fleet).await, policy("good"));
    let generation = fleet.host.policies().await.unwrap().generation;
    fleet.host.drop_policy(&tagged("back").marked(1)).unwrap();
    fleet.host.until_generation_after(generation, SOON).await.unwrap();
    assert_eq!(reason(&fleet).await, policy("back"));
}

/// Until the configured policy is there, the host's own decides, and says so.
#[tokio::test]
async fn a_policy_may_come_after_the_host() {
    let mut plan = FleetPlan::unified(1);
    plan.host = plan.host.policy("active");
    let fleet = plan.start().await.unwrap();
    assert_eq!(reason(&fleet).await.0, "not-loaded");
    let listed = fleet.host.policies().await.unwrap();
    assert_eq!(listed.named("active").unwrap().state, "missing");
    fleet.host.drop_policy(&tagged("here")).unwrap();
    until("it to decide", SOON, async || (reason(&fleet).await == policy("here")).then_some(()))
        .await
        .unwrap();
    let fallbacks =
        fleet.host.metrics().await.unwrap().sum("sluice_fallbacks_total", &[("reason", "policy_not_loaded")]);
    assert!(fallbacks >= 1.0);
}

/// A request keeps the set of policies that was in force when it came, to its end; the next one gets the new set.
#[tokio::test]
async fn a_swap_in_mid_stream_loses_nothing() {
    let slow = "--time-scale 1 --decode-step-base-ms 20";
    let fleet =
        FleetPlan::pull(1, 1).engines("decode", slow).decided_by(tagged("old")).start().await.unwrap();
    let before = fleet.host.policies().await.unwrap().generation;
    let ask = Ask::completion(&words(1, 64), 60)
        .with("ignore_eos", true)
        .streamed()
        .header("x-sluice-decision", "1");
    let headers = [("x-sluice-decision", "1")];
    let mut stream = fleet.client().stream(ask.endpoint.path(), &ask.json(), &headers).await.unwrap();
    let decision = sluice_harness::Decision::parse(stream.header("x-sluice-decision").unwrap()).unwrap();
    assert_eq!((decision.generation, decision.reason.as_str()), (before, "old"));
    stream.next().await.unwrap().expect("its first token");

    fleet.host.drop_policy(&tagged("new").marked(1)).unwrap();
    let after = fleet.host.until_generation_after(before, SOON).await.unwrap();
    let next = right(fleet.client(), &Ask::completion("next", 2)).await.decision.unwrap();
    assert_eq!((next.generation, next.reason.as_str()), (after, "new"));

    let events = stream.rest().await.unwrap();
    assert_eq!(events.last().map(|event| event.data.as_str()), Some("[DONE]"));
}

/// Swaps under requests: each is decided by a set that was in force meanwhile, and none fails.
#[tokio::test]
async fn swaps_under_load_lose_nothing() {
    const SWAPS: u32 = 10;
    let fleet = FleetPlan::pull(1, 1).decided_by(tagged("0")).start().await.unwrap();
    let generation = async || fleet.host.policies().await.unwrap().generation;
    let swaps = async {
        for mark in 1..=SWAPS {
            let before = generation().await;
            fleet.host.drop_policy(&tagged("0").marked(mark)).unwrap();
            fleet.host.until_generation_after(before, SOON).await.unwrap();
        }
    };
    let done = std::cell::Cell::new(false);
    let requests = async {
        let mut seen = std::collections::BTreeSet::new();
        let mut number = 0;
        while !done.get() {
            number += 1;
            let before = generation().await;
            let decision =
                right(fleet.client(), &Ask::completion(&words(number, 20), 4)).await.decision.unwrap();
            assert_eq!(decision.source, "policy");
            assert!((before..=generation().await).contains(&decision.generation));
            seen.insert(decision.generation);
        }
        seen
    };
    let (seen, ()) = tokio::join!(requests, async {
        swaps.await;
        done.set(true);
    });
    assert!(seen.len() > 1, "requests saw several sets: {seen:?}");
}

/// A version that was compiled before comes from the cache, and that is told wherever a person looks.
#[tokio::test]
async fn a_version_that_comes_back_is_not_compiled_again() {
    let fleet = FleetPlan::unified(1).decided_by(tagged("a")).start().await.unwrap();
    let code = async |wanted: &str| {
        until(&format!("code to be {wanted}"), SOON, async || {
            let listed = fleet.host.admin().get("/admin/policies").await.ok()?.json();
            (listed["policies"][0]["code"] == wanted).then_some(listed)
        })
        .await
        .unwrap()
    };
    code("compiled").await;
    let generation = fleet.host.policies().await.unwrap().generation;
    fleet.host.drop_policy(&tagged("a").marked(1)).unwrap();
    let generation = fleet.host.until_generation_after(generation, SOON).await.unwrap();
    fleet.host.drop_policy(&tagged("b")).unwrap();
    fleet.host.until_generation_after(generation, SOON).await.unwrap();
    let listed = code("cached").await;
    assert_eq!(reason(&fleet).await, policy("b"));
    let cache = &listed["cache"];
    // The settings may have been seen before the policy.
    assert!(cache["hits"].as_u64().is_some_and(|hits| hits > 0), "{cache}");
    assert_eq!((cache["misses"].as_u64(), cache["last_trouble"].as_str()), (Some(2), None), "{cache}");
    let metrics = fleet.host.metrics().await.unwrap();
    let sum = |result| metrics.sum("sluice_policy_cache_total", &[("result", result)]);
    assert!(sum("hit") > 0.0);
    assert_eq!(["miss", "refused", "failed"].map(sum), [2.0, 0.0, 0.0]);
    let admin = fleet.host.admin().base().trim_start_matches("http://").to_owned();
    let ended =
        sluice_harness::process::run_to_end(&["policy", "list", "--admin", &admin], SOON).await.unwrap();
    assert!(ended.stdout.contains("cached, "), "{}", ended.stdout);
}

/// Compiling is felt by no request: it happens in a process of its own, which tells by its exit what it has against a
/// file.
#[tokio::test]
async fn policies_are_compiled_elsewhere() {
    let fleet = FleetPlan::unified(1).decided_by(tagged("good")).start().await.unwrap();
    assert_eq!(reason(&fleet).await, policy("good"));
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_policies_compiled_inside_total", &[]), 0.0);

    let parent = std::process::id().to_string();
    let ended = run_to_end(&["compile-policy", "0", &parent], SOON).await.unwrap();
    assert_eq!(ended.code, Some(1), "an empty component: {}", ended.stdout);
    assert!(!ended.stderr.trim().is_empty() && ended.stdout.is_empty(), "{}", ended.stderr);
    let orphan = run_to_end(&["compile-policy", "0", "1"], SOON).await.unwrap();
    assert_eq!(orphan.code, Some(75), "who asked has ended");
}
