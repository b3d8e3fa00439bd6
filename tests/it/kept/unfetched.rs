//! Engines that do not give turns back, or do not fetch them: each is found, by what requests meet and by the host's probe, and
//! named with its cure; and answers are right all the while.

use std::time::Duration;

use serde_json::{Value, json};
use sluice_harness::{Endpoint, Fleet, FleetPlan, Host, HostPlan, MockEngine, Mode, PolicyFile};

use super::engines::fetched;
use super::talk::{self, Events, Taken, Talk, keeping_themselves, nothing_left, nothing_left_when_drained};
use crate::SOON;

/// A probe whose prefill leg hangs, with room.
const WITH_A_HANGING_LEG: Duration = Duration::from_secs(30);

/// How often the host's log has these words.
fn times_said(fleet: &mut Fleet, words: &str) -> usize {
    fleet.host.process().log().matches(words).count()
}

async fn fallbacks(fleet: &Fleet, reason: &str) -> f64 {
    fleet.host.metrics().await.unwrap().sum("sluice_fallbacks_total", &[("reason", reason)])
}

/// A host that believes its engines to keep turns longer than they do is refused by them: no client sees that, it is said once,
/// and no worker is spared for it.
#[tokio::test]
async fn a_turn_that_its_engine_has_let_go_of_costs_one_prefill() {
    // Prefill engines decline the last 5 s of a hold: from its beginning on.
    let plan = keeping_themselves(1, 1, "0.32", "").engines("decode", "--decoder-ttl-ms 4000");
    let mut fleet = plan.start().await.unwrap();
    let mut talk = Talk::new(Endpoint::Chat, "c");
    // As many failures as would open a breaker.
    let turns = 7;
    for number in 0..turns {
        talk.say(number, 60);
        assert_eq!(talk.turn(&fleet).await.reused, 0);
    }
    let metrics = fleet.host.metrics().await.unwrap();
    let failed = [("worker", "prefill-0"), ("kind", "turn_unread")];
    let refused = (turns - 1) as f64;
    assert_eq!(metrics.sum("sluice_leg_failures_total", &failed), refused);
    assert_eq!(metrics.sum("sluice_leg_failures_total", &[]), refused);
    assert_eq!(metrics.sum("sluice_worker_breaker_opened_total", &[]), 0.0);
    assert_eq!(fetched(&fleet).await, 0.0);
    let said = "may let go of turns earlier than decoder_ttl_ms = 480000 says";
    assert_eq!(times_said(&mut fleet, said), 1);
}

/// A decode engine that was not told to keep turns is named, by answers that would tell of one: whole ones, and streams of 0.33.
#[tokio::test]
async fn a_decode_engine_that_keeps_nothing_is_named() {
    for (wire, how, is_known) in [
        ("0.32", Taken::Whole, true),
        ("0.32", Taken::Streamed, false),
        ("0.33", Taken::Whole, true),
        ("0.33", Taken::Streamed, true),
    ] {
        let plan = keeping_themselves(1, 1, wire, "").engines_without("decode", "--bidirectional");
        let mut fleet = plan.start().await.unwrap();
        let mut talk = Talk::new(Endpoint::Chat, "c").taken(how);
        for turn in 0..2 {
            talk.say(turn, 50);
            assert_eq!(talk.turn(&fleet).await.reused, 0);
        }
        let reasons = ["turn_not_kept_by_engine", "turn_untold"];
        let counted = (fallbacks(&fleet, reasons[0]).await, fallbacks(&fleet, reasons[1]).await);
        assert_eq!(counted, if is_known { (2.0, 0.0) } else { (0.0, 2.0) }, "{wire} {how:?}");
        let said = "worker \"decode-0\" of pool \"main\" told of no kept turn in an answer that would";
        assert_eq!(times_said(&mut fleet, said), usize::from(is_known), "{wire} {how:?}");
        nothing_left(&fleet).await;
    }
}

/// Of an answer that ended at the client's own words vLLM keeps nothing, however it was started: counted, and no engine is
/// named.
#[tokio::test]
async fn an_engine_is_not_named_for_what_stop_words_do() {
    let (prefill, decode) =
        (MockEngine::well_behaved().await.unwrap(), MockEngine::well_behaved().await.unwrap());
    let guest = PolicyFile::guest("keeps-turns", "keeps-turns").unwrap();
    let plan = HostPlan::new(Mode::Bidirectional).policy("keeps-turns");
    let plan = plan.worker("prefill", prefill.url()).worker("decode", decode.url());
    let mut host = Host::start(&plan, &[guest]).await.unwrap();
    host.until_ready().await.unwrap();
    for (number, (stop, said)) in
        [(json!(["<end>"]), 0), (json!("<end>"), 0), (json!([]), 1)].into_iter().enumerate()
    {
        let body = json!({"model": "emulated", "prompt": "hello", "max_tokens": 8, "stop": stop});
        assert_eq!(host.client().post("/v1/completions", &body).await.unwrap().status, 200);
        let counted = [("reason", "turn_not_kept_by_engine")];
        let fallbacks = host.metrics().await.unwrap().sum("sluice_fallbacks_total", &counted);
        assert_eq!(fallbacks, number as f64 + 1.0);
        assert_eq!(host.process().log().matches("told of no kept turn").count(), said, "{stop}");
    }
}

/// A prefill engine that computes what it could fetch is named, and its answers are right.
#[tokio::test]
async fn a_prefill_engine_that_does_not_fetch_is_named() {
    for wire in ["0.32", "0.33"] {
        let plan = keeping_themselves(1, 1, wire, "").engines("prefill", "--kv-recompute-threshold 100000");
        let mut fleet = plan.start().await.unwrap();
        let mut talk = Talk::new(Endpoint::Chat, "c");
        for turn in 0..3 {
            talk.say(turn, 100);
            talk.turn(&fleet).await;
        }
        assert_eq!(fallbacks(&fleet, "turn_not_fetched").await, 2.0, "{wire}");
        assert_eq!(fetched(&fleet).await, 0.0, "{wire}");
        let said = "worker \"prefill-0\" of pool \"main\" computed a prompt of which it could have fetched";
        assert_eq!(times_said(&mut fleet, said), 1, "{wire}");
        nothing_left_when_drained(&fleet).await;
    }
}

/// vLLM's prefill engines wait for ever for what they are offered, if they were not told that it can be fetched. That costs time,
/// is said, and speaks against nobody; and once a probe has found it out nothing is offered any more.
#[tokio::test]
async fn a_prefill_engine_that_hangs_on_turns_is_named() {
    for probed in [false, true] {
        let plan = keeping_themselves(1, 1, "0.32", "").engines_without("prefill", "--bidirectional");
        let mut plan = plan.engines("prefill", "--kv-recompute-threshold 64");
        plan.host.pool =
            format!("kv_bytes_per_token = 64\nprobe_kv = {probed}\nprefill_timeout_ms = 1_000\n");
        let mut fleet = plan.start().await.unwrap();
        if probed {
            let back = [("direction", "decode-to-prefill"), ("outcome", "not-moved")];
            let host = &fleet.host;
            host.until_metric("sluice_kv_probes_total", &back, |count| count == 1.0, WITH_A_HANGING_LEG)
                .await
                .unwrap();
        }
        let mut talk = Talk::new(Endpoint::Chat, "c");
        for turn in 0..3 {
            talk.say(turn, 100);
            assert_eq!(talk.turn(&fleet).await.reused, 0);
        }
        let metrics = fleet.host.metrics().await.unwrap();
        let hung = [("worker", "prefill-0"), ("kind", "turn_unread")];
        assert_eq!(metrics.sum("sluice_leg_failures_total", &hung), if probed { 0.0 } else { 2.0 });
        assert_eq!(metrics.sum("sluice_leg_failures_total", &[]), if probed { 0.0 } else { 2.0 });
        assert_eq!(fallbacks(&fleet, "turn_not_fetched").await, if probed { 2.0 } else { 0.0 });
        let events = Events::of(&fleet).await;
        assert_eq!((events.withheld, events.unreleased), if probed { (2.0, 0.0) } else { (0.0, 2.0) });
        let said = "gave no answer when it was to fetch a turn that \"decode-0\" keeps";
        assert_eq!(times_said(&mut fleet, said), usize::from(!probed));
        if probed {
            assert_eq!(times_said(&mut fleet, "KEPT TURNS DO NOT COME BACK"), 1);
            nothing_left_when_drained(&fleet).await;
        }
    }
}

/// The host's own probe is a turn to its decode engine, which would keep it for minutes. It is fetched by prefill, whose cache
/// cannot have it, and nothing is left of it on either.
#[tokio::test]
async fn a_probe_proves_both_ways_and_leaves_nothing() {
    for (wire, engines) in [("0.32", ""), ("0.33", ""), ("0.32", "--report-cached-tokens false")] {
        let mut plan = keeping_themselves(1, 1, wire, "").engines_without("prefill", "--no-prefix-caching");
        // As vLLM without settings of its own.
        plan = plan.engines("prefill", &format!("--kv-recompute-threshold 64 {engines}"));
        plan.host.pool = "kv_bytes_per_token = 64\nprobe_kv = true\n".into();
        let fleet = plan.start().await.unwrap();
        for direction in ["prefill-to-decode", "decode-to-prefill"] {
            let moved = [("direction", direction), ("outcome", "moved")];
            let host = &fleet.host;
            host.until_metric("sluice_kv_probes_total", &moved, |count| count == 1.0, SOON).await.unwrap();
            let moves = [("direction", direction)];
            host.until_metric("sluice_pool_kv_moves", &moves, |moves| moves == 1.0, SOON).await.unwrap();
        }
        // Whole blocks of a prompt of a hundred words.
        let fetched = fetched(&fleet).await;
        assert!(fetched > 200.0 && fetched % talk::BLOCK_TOKENS as f64 == 0.0, "{fetched}");
        nothing_left(&fleet).await;
        let listed = fleet.host.admin().get("/admin/fleet").await.unwrap().json();
        assert_eq!(listed["pools"][0]["kv"]["back"], "moved", "{listed}");
        assert!(listed["pools"][0]["turns_note"].is_null(), "{listed}");
    }
}

/// What a probe finds on the way back is counted, said once and shown to operators; balancers see a pool that serves.
#[tokio::test]
async fn a_probe_finds_turns_that_do_not_come_back() {
    type Change = fn(FleetPlan) -> FleetPlan;
    let cases: [(Change, &str); 3] = [
        (|plan| plan.engines_without("decode", "--bidirectional"), "decode told of no turn that it keeps"),
        (
            |plan| plan.engines("prefill", "--kv-recompute-threshold 100000"),
            "prefill computed the prompt itself",
        ),
        (|plan| plan.engines("decode", "--decoder-ttl-ms 4000"), "answered 500"),
    ];
    for wire in ["0.32", "0.33"] {
        for (change, what) in &cases {
            let mut plan = change(keeping_themselves(1, 1, wire, ""));
            plan.host.pool = "kv_bytes_per_token = 64\nprobe_kv = true\n".into();
            let mut fleet = plan.start().await.unwrap();
            let back = [("direction", "decode-to-prefill"), ("outcome", "not-moved")];
            let host = &fleet.host;
            host.until_metric("sluice_kv_probes_total", &back, |count| count == 1.0, SOON).await.unwrap();
            let (there, back) = ([("direction", "prefill-to-decode")], [("direction", "decode-to-prefill")]);
            host.until_metric("sluice_pool_kv_moves", &back, |moves| moves == 0.0, SOON).await.unwrap();
            assert_eq!(host.metrics().await.unwrap().sum("sluice_pool_kv_moves", &there), 1.0);
            let listed = host.admin().get("/admin/fleet").await.unwrap().json();
            let note = listed["pools"][0]["turns_note"].as_str().unwrap_or_default();
            assert!(note.contains(what), "{what}: {listed}");
            let ready = fleet.client().get("/ready").await.unwrap().json()["pools"][0].clone();
            assert_eq!((&ready["note"], &ready["kv"]), (&Value::Null, &"moved".into()), "{ready}");
            nothing_left(&fleet).await;
            assert_eq!(times_said(&mut fleet, "KEPT TURNS DO NOT COME BACK"), 1, "{what}");
        }
    }
}
