//! Pools whose KV the host moves: answers are the oracle's by pull and by push, whoever is attached, whoever dies.

use sluice_harness::ask::message;
use sluice_harness::{Ask, Fleet, FleetPlan, Metrics, PolicyFile};
use sluice_sim::words;
use tokio::task::JoinSet;

use crate::{SOON, nothing_left_booked, right};

/// Prompt lengths around KV blocks of 16 tokens, and one that takes several steps.
const PROMPT_WORDS: [usize; 5] = [1, 15, 16, 17, 3_000];

/// KV moves as a request's header `x-transfer` says, and engines have no caches that would spare it.
fn as_told(prefills: usize, decodes: usize) -> FleetPlan {
    let policy = PolicyFile::guest("as-told", "transfer-as-told").unwrap();
    let mut plan = FleetPlan::hosted(prefills, decodes).decided_by(policy);
    plan.host.policy_keys = "labels = [\"x-transfer\"]".into();
    plan.engines("", "--no-prefix-caching")
}

fn asks(words_in_prompt: usize) -> [Ask; 4] {
    let text = words(words_in_prompt as u64, words_in_prompt);
    let chat = Ask::chat(&[message("system", "be brief"), message("user", &text)], 24);
    let completion = Ask::completion(&text, 24);
    [chat.clone(), completion.clone(), chat.streamed(), completion.streamed()]
}

async fn metrics(fleet: &Fleet) -> Metrics {
    fleet.host.metrics().await.unwrap()
}

/// Engines that never attach: decode computes, nothing is prefilled in vain, and it is said.
#[tokio::test]
async fn engines_that_are_not_attached_serve_without_transfers() {
    let fleet = as_told(1, 1).unattached().start().await.unwrap();
    let mut count = 0.0;
    for how in ["pull", "push", "late"] {
        for ask in asks(64) {
            right(fleet.client(), &ask.header("x-transfer", how)).await;
            count += 1.0;
        }
    }
    let metrics = metrics(&fleet).await;
    assert_eq!(metrics.sum("sluice_fallbacks_total", &[("reason", "not_attached")]), count);
    assert_eq!(metrics.sum("sluice_transfers_total", &[]), 0.0);
    assert_eq!(fleet.worker("prefill-0").prompt_tokens("local_compute").await.unwrap(), 0.0);
    let worker = fleet.host.worker("decode-0").await.unwrap();
    assert_eq!((&worker["attached"], &worker["state"]), (&false.into(), &"up".into()));
    assert_eq!(fleet.host.log().matches("is not attached to this host").count(), 1, "{}", fleet.host.log());
}

/// One pool, both modes: every prompt token's KV moved, and none was computed by decode.
#[tokio::test]
async fn answers_are_right_by_push_and_by_pull() {
    let fleet = as_told(1, 1).start().await.unwrap();
    let mut prompt_tokens = 0;
    let mut count = 0.0;
    for words_in_prompt in PROMPT_WORDS {
        for how in ["pull", "push", "late"] {
            for ask in asks(words_in_prompt) {
                let reply = right(fleet.client(), &ask.header("x-transfer", how)).await;
                assert_eq!(reply.decision.unwrap().placement, "disaggregated");
                prompt_tokens += reply.prompt_tokens.unwrap();
                count += 1.0;
            }
        }
    }
    let metrics = metrics(&fleet).await;
    let transfers = |mode| metrics.sum("sluice_transfers_total", &[("mode", mode), ("handle", "dispatched")]);
    assert_eq!((transfers("push"), transfers("pull")), (count / 3.0, 2.0 * count / 3.0));
    assert_eq!(metrics.sum("sluice_fallbacks_total", &[]), 0.0);
    assert_eq!(metrics.sum("sluice_kv_transfers_failed_total", &[]), 0.0);
    let way = [("source", "prefill-0"), ("sink", "decode-0"), ("direction", "prefill-to-decode")];
    for verb in ["push", "pull"] {
        let flow: Vec<_> = way.into_iter().chain([("verb", verb)]).collect();
        assert!(metrics.sum("sluice_transfer_bytes_total", &flow) > 0.0, "{verb}");
    }
    let tokens = async |worker: &str, of: &str| fleet.worker(worker).prompt_tokens(of).await.unwrap();
    assert_eq!(tokens("prefill-0", "local_compute").await, prompt_tokens as f64);
    assert_eq!(tokens("decode-0", "external_kv_transfer").await, prompt_tokens as f64);
    assert_eq!(tokens("decode-0", "local_compute").await, 0.0);
}

/// A prompt that is too short to be worth moving is computed by decode, which says so to the host while prefill still
/// computes it: as was decided, so no fallback. Decode holds each turn until its policy said that it is not kept.
#[tokio::test]
async fn short_prompts_are_computed_where_they_are_decoded() {
    let fleet = as_told(1, 1).start().await.unwrap();
    for ask in asks(8) {
        right(fleet.client(), &ask.header("x-transfer", "push-long")).await;
    }
    let released = [("end", "released")];
    let host = &fleet.host;
    host.until_metric("sluice_transfer_holds_ended_total", &released, |count| count == 4.0 + 4.0, SOON)
        .await
        .unwrap();
    let metrics = metrics(&fleet).await;
    assert_eq!(metrics.sum("sluice_fallbacks_total", &[]), 0.0);
    assert_eq!(metrics.sum("sluice_transfer_bytes_total", &[]), 0.0);
}

/// An engine that dies while it is in a transfer, or while it computes what is to come: every answer is right, nothing
/// stays booked, and the one that comes back is used again.
#[tokio::test]
async fn engines_that_die_in_a_transfer_cost_no_request() {
    for (victim, how) in
        [("prefill-0", "push"), ("decode-0", "push"), ("prefill-0", "pull"), ("decode-0", "late")]
    {
        // Prompts take 60 ms a thousand tokens here, so that a kill meets some of them halfway.
        let plan = as_told(2, 2).engines("", "--time-scale 0.5").pool("decode_first_byte_ms = 5_000\n");
        let mut fleet = plan.start().await.unwrap();
        let client = fleet.client().clone();
        let mut asking = JoinSet::new();
        asking.spawn(async move {
            for number in 0..40_u64 {
                let ask = Ask::completion(&words(number, 1_500), 8).header("x-transfer", how);
                // A stream that breaks behind its first words is not begun anew.
                let streams = number % 2 == 0 && victim.starts_with("prefill");
                right(&client, &if streams { ask.streamed() } else { ask }).await;
            }
        });
        fleet
            .host
            .until_metric("sluice_requests_total", &[("outcome", "ok")], |ok| ok >= 3.0, SOON)
            .await
            .unwrap();
        fleet.worker_mut(victim).process().kill().await.unwrap();
        fleet.host.until_metric("sluice_transfer_engines", &[], |count| count == 3.0, SOON).await.unwrap();
        fleet.restart(victim).await.unwrap();
        fleet.host.until_metric("sluice_transfer_engines", &[], |count| count == 4.0, SOON).await.unwrap();
        asking.join_all().await;
        let names: Vec<_> = fleet.names().iter().map(String::as_str).collect();
        nothing_left_booked(&fleet.host, &names).await;
        let metrics = metrics(&fleet).await;
        assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", "ok")]), 40.0, "{victim} {how}");
    }
}

/// Prefills of two seconds, told of every 64 tokens.
const SLOW: &str = "--time-scale 1 --prefill-tokens-per-s 4000 --max-step-tokens 64";

/// A push that is under way while its prompt is computed, and by whom and for whom.
struct Pushing {
    asked: JoinSet<()>,
    prefill: String,
    decode: String,
}

/// Asks for an answer that must be right, and waits until KV moves while its prompt is still computed.
async fn pushing(fleet: &Fleet) -> Pushing {
    let (client, ask) = (fleet.client().clone(), Ask::completion(&words(7, 8_000), 8));
    let ask = ask.streamed().header("x-transfer", "push");
    let mut asked = JoinSet::new();
    asked.spawn(async move { drop(right(&client, &ask).await) });
    let host = &fleet.host;
    host.until_metric("sluice_transfer_bytes_total", &[], |bytes| bytes > 0.0, SOON).await.unwrap();
    let mut busy = Vec::new();
    for name in fleet.names() {
        if host.worker(name).await.unwrap()["booked"]["requests"] == 1 {
            busy.push(name.clone());
        }
    }
    let [prefill, decode] = &busy[..] else { panic!("both legs are under way, not {busy:?}") };
    Pushing { asked, prefill: prefill.clone(), decode: decode.clone() }
}

/// What becomes of a transfer whose other end has died, once all is over.
async fn came_through(fleet: &Fleet, victim: &str, asked: JoinSet<()>) {
    asked.join_all().await;
    let alive: Vec<_> = fleet.names().iter().map(String::as_str).filter(|name| *name != victim).collect();
    nothing_left_booked(&fleet.host, &alive).await;
    for name in alive {
        fleet.worker(name).until_idle(SOON).await.unwrap();
    }
    fleet.host.until_metric("sluice_transfer_holds", &[], |holds| holds == 0.0, SOON).await.unwrap();
    let metrics = metrics(fleet).await;
    assert!(metrics.sum("sluice_retries_total", &[]) >= 1.0);
    assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", "ok")]), 1.0);
}

#[tokio::test]
async fn a_prefill_engine_that_dies_while_it_pushes_is_replaced() {
    let mut fleet = as_told(2, 1).engines("prefill", SLOW).start().await.unwrap();
    let Pushing { asked, prefill, .. } = pushing(&fleet).await;
    fleet.worker_mut(&prefill).process().kill().await.unwrap();
    came_through(&fleet, &prefill, asked).await;
}

#[tokio::test]
async fn a_decode_engine_that_dies_while_it_is_pushed_to_is_replaced() {
    let mut fleet = as_told(1, 2).engines("prefill", SLOW).start().await.unwrap();
    let Pushing { asked, decode, .. } = pushing(&fleet).await;
    fleet.worker_mut(&decode).process().kill().await.unwrap();
    came_through(&fleet, &decode, asked).await;
    let metrics = metrics(&fleet).await;
    // Its prefill ended with it: its blocks were given back, and nothing of them is counted as handed over.
    let fate = |fate| metrics.sum("sluice_transfers_total", &[("mode", "push"), ("handle", fate)]);
    assert_eq!((fate("stranded"), fate("dispatched")), (1.0, 1.0));
}

/// A client that leaves ends both legs, the transfer and the hold.
#[tokio::test]
async fn a_client_that_leaves_ends_a_push() {
    let fleet = as_told(1, 1).engines("prefill", SLOW).start().await.unwrap();
    let Pushing { asked, .. } = pushing(&fleet).await;
    drop(asked);
    let host = &fleet.host;
    host.until_metric("sluice_requests_total", &[("outcome", "cancelled")], |count| count == 1.0, SOON)
        .await
        .unwrap();
    for worker in fleet.workers() {
        worker.until_idle(SOON).await.unwrap();
    }
    for name in ["sluice_transfer_holds", "sluice_worker_handles", "sluice_transfer_queue"] {
        host.until_metric(name, &[], |count| count == 0.0, SOON).await.unwrap();
    }
    let abandoned = [("mode", "push"), ("handle", "abandoned")];
    assert_eq!(metrics(&fleet).await.sum("sluice_transfers_total", &abandoned), 1.0);
    right(fleet.client(), &Ask::completion("still there", 4).header("x-transfer", "push")).await;
}

/// A decode worker that no connection reaches leaves the blocks in hand: another decodes, and nothing is prefilled again.
#[tokio::test]
async fn a_decode_leg_that_reached_nobody_is_bound_anew() {
    let mut plan = as_told(1, 2).gated();
    plan.host.server = "connect_timeout_ms = 200".into();
    let mut fleet = plan.start().await.unwrap();
    fleet.gates("decode-0").http.swallow_connections().await.unwrap();
    let mut prompt_tokens = 0;
    for number in 0..6 {
        let ask = Ask::completion(&words(number, 200), 4).header("x-transfer", "pull");
        prompt_tokens += right(fleet.client(), &ask).await.prompt_tokens.unwrap();
    }
    let metrics = metrics(&fleet).await;
    assert!(metrics.sum("sluice_retries_total", &[("reason", "connect")]) >= 1.0);
    assert_eq!(metrics.sum("sluice_transfers_total", &[]), 6.0);
    assert_eq!(metrics.sum("sluice_transfers_total", &[("mode", "pull"), ("handle", "dispatched")]), 6.0);
    let computed = fleet.worker("prefill-0").prompt_tokens("local_compute").await.unwrap();
    assert_eq!(computed, prompt_tokens as f64);
}

/// What operators see: who is attached, what moved, and how each request's KV did.
#[tokio::test]
async fn operators_see_who_is_attached_and_what_moved() {
    let fleet = as_told(1, 1).start().await.unwrap();
    right(fleet.client(), &Ask::completion(&words(3, 640), 4).header("x-transfer", "push")).await;
    let told = fleet.host.admin().get("/admin/fleet").await.unwrap().json();
    let engine = &told["transfer"]["engines"][0];
    let of = |name: &str| engine[name].clone();
    assert_eq!((of("name"), of("worker")), ("decode-0".into(), "main/decode-0".into()));
    assert_eq!((of("role"), of("blocks"), of("block_tokens")), ("decode".into(), 4096.into(), 16.into()));
    let flows = told["transfer"]["flows"].as_array().unwrap();
    let moved: Vec<_> = flows.iter().filter(|flow| flow["bytes"] != 0).collect();
    let [flow] = &moved[..] else { panic!("one flow, not {flows:?}") };
    let ends = ["source", "sink", "verb"].map(|end| flow[end].as_str().unwrap());
    assert_eq!(ends, ["prefill-0", "decode-0", "push"]);
    assert_eq!(told["pools"][0]["workers"][0]["attached"], true);
    let decisions = fleet.host.admin().get("/admin/decisions").await.unwrap().json();
    assert_eq!(decisions["decisions"][0]["transfer"], "push", "{decisions}");
}
