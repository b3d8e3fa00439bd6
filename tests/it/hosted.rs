//! Pools whose KV the host moves: answers are the oracle's by pull and by push, whoever is attached, whoever dies.

use sluice_harness::ask::message;
use sluice_harness::{Ask, Fleet, FleetPlan, Metrics, PolicyFile};
use sluice_sim::words;

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
/// computes it: as was decided, so no fallback.
#[tokio::test]
async fn short_prompts_are_computed_where_they_are_decoded() {
    let fleet = as_told(1, 1).start().await.unwrap();
    for ask in asks(8) {
        right(fleet.client(), &ask.header("x-transfer", "push-long")).await;
    }
    let metrics = metrics(&fleet).await;
    assert_eq!(metrics.sum("sluice_fallbacks_total", &[]), 0.0);
    assert_eq!(metrics.sum("sluice_transfer_bytes_total", &[]), 0.0);
    assert_eq!(metrics.sum("sluice_transfer_holds_ended_total", &[("end", "released")]), 4.0);
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
        let asking = tokio::spawn(async move {
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
        asking.await.unwrap();
        let names: Vec<_> = fleet.names().iter().map(String::as_str).collect();
        nothing_left_booked(&fleet.host, &names).await;
        let metrics = metrics(&fleet).await;
        assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", "ok")]), 40.0, "{victim} {how}");
    }
}
