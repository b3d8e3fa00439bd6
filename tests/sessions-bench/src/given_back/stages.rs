//! Ways to move KV, each without and with what decode keeps, and second turns by them.

use std::time::Duration;

use anyhow::{Context, ensure};
use sluice_harness::quantiles::quantile_ms;
use sluice_harness::{Ask, Fleet, FleetPlan, PolicyFile, Reply};
use sluice_sim::{Model, words};
use tokio::time::sleep;

use super::speeds::{KV_BYTES_PER_TOKEN, Speed};

/// What the client says in its second turn, and the answer before it, in tokens.
pub const TAIL_TOKENS: usize = 256;
const ANSWER_TOKENS: usize = 16;
/// Between a prompt's tokens as asked for and as counted: an answer that ended early.
const LENGTH_SLACK: usize = ANSWER_TOKENS + 1;
/// Between a turn and the next one: a stream is over for its client a little before its host and engine have closed their books.
const GAP: Duration = Duration::from_millis(100);
/// Until they have, at most.
const BOOKS_CLOSED_WITHIN: Duration = Duration::from_secs(20);

/// Who moves KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mover {
    /// The host, by pull or push.
    Host { push: bool },
    /// The engines.
    Engines,
}

/// A way to move KV.
#[derive(Debug)]
pub struct Stage {
    /// Its short name.
    pub how: &'static str,
    mover: Mover,
    reuses: bool,
}

/// Without and with, by turns.
pub const STAGES: [Stage; 6] = {
    const fn stage(how: &'static str, mover: Mover, reuses: bool) -> Stage {
        Stage { how, mover, reuses }
    }
    const PULL: Mover = Mover::Host { push: false };
    const PUSH: Mover = Mover::Host { push: true };
    [
        stage("pull", PULL, false),
        stage("pull", PULL, true),
        stage("push", PUSH, false),
        stage("push", PUSH, true),
        stage("vLLM's pull", Mover::Engines, false),
        stage("bidirectional", Mover::Engines, true),
    ]
};

/// Of one stage, by prompt: median time to first token of second turns (of two the shorter), and tokens reused.
#[derive(Debug, Default)]
pub struct Seen {
    /// In milliseconds.
    pub ttft_ms: Vec<f64>,
    /// The least of each prompt's.
    pub reused: Vec<u64>,
}

impl Stage {
    /// As tables call it.
    pub fn name(&self) -> String {
        format!("{}, {}", if self.reuses { "on" } else { "off" }, self.how)
    }

    /// Second turns of all lengths, so many conversations of each.
    pub async fn run(&self, speed: &Speed, prompts: &[usize], conversations: u64) -> anyhow::Result<Seen> {
        let fleet = self.start(speed).await?;
        let mut seen = Seen::default();
        for prompt in prompts {
            let (mut times, mut least_reused) = (Vec::new(), u64::MAX);
            for number in 0..conversations {
                let (took, reused) = second_turn(&fleet, *prompt, number).await?;
                let expected = if self.reuses { prompt - TAIL_TOKENS - 2 * LENGTH_SLACK } else { 0 } as u64;
                ensure!(
                    if self.reuses { reused >= expected } else { reused == 0 },
                    "a second turn of {prompt} tokens reused {reused}, not {expected}"
                );
                least_reused = least_reused.min(reused);
                times.push(took);
            }
            seen.ttft_ms.push(quantile_ms(&times, 0.5).context("no second turn")?);
            seen.reused.push(least_reused);
        }
        Ok(seen)
    }

    async fn start(&self, speed: &Speed) -> anyhow::Result<Fleet> {
        let plan = match (self.mover, self.reuses) {
            (Mover::Host { .. }, _) => FleetPlan::hosted(1, 1),
            (Mover::Engines, false) => FleetPlan::pull(1, 1),
            (Mover::Engines, true) => FleetPlan::bidirectional(1, 1).engines("", "--wire 0.33"),
        };
        let (policy, settings) = match self.mover {
            Mover::Host { push: true } => ("adaptive", "push = true\n"),
            Mover::Host { push: false } | Mover::Engines => ("adaptive", ""),
        };
        let retain = if self.reuses { "" } else { "retain_ttl_ms = 0\n" };
        let policy = PolicyFile::policy(policy, policy)?.settings(&format!("{settings}{retain}"));
        let [prefill_link, decode_link] = speed.links();
        let Speed { prefill_tokens_per_s, prefill_base_ms, .. } = speed;
        let prefill = format!(
            "--prefill-tokens-per-s {prefill_tokens_per_s} --prefill-base-ms {prefill_base_ms} {prefill_link}"
        );
        let all = format!("--no-prefix-caching --time-scale 1 --kv-bytes-per-token {KV_BYTES_PER_TOKEN}");
        // Kept turns of several long conversations at a time.
        let decode = format!("--blocks 16384 {decode_link}");
        let plan = plan.engines("", &all).engines("prefill", &prefill).engines("decode", &decode);
        let mut plan = plan.decided_by(policy);
        plan.host.pool =
            format!("kv_bytes_per_token = {KV_BYTES_PER_TOKEN}\nmax_model_len = 32768\nprobe_kv = false\n");
        plan.start().await.context("the fleet does not start")
    }
}

/// Time to first token of a conversation's second turn, which has about so many prompt tokens, and tokens reused.
async fn second_turn(fleet: &Fleet, prompt_tokens: usize, number: u64) -> anyhow::Result<(Duration, u64)> {
    let seed = prompt_tokens as u64 * 1_000 + number;
    let mut prompt = words(seed, prompt_tokens - TAIL_TOKENS - ANSWER_TOKENS);
    let first = turn(fleet, &prompt, seed).await?;
    let none = |requests: f64| requests == 0.0;
    fleet.host.until_metric("sluice_in_flight_requests", &[], none, BOOKS_CLOSED_WITHIN).await?;
    sleep(GAP).await;
    prompt.push_str(&first.text);
    prompt.push_str(&words(seed + 500, TAIL_TOKENS));
    let second = turn(fleet, &prompt, seed).await?;
    Ok((second.first_token.context("no token came")?, second.cached_tokens))
}

async fn turn(fleet: &Fleet, prompt: &str, conversation: u64) -> anyhow::Result<Reply> {
    let ask = Ask::completion(prompt, ANSWER_TOKENS).streamed();
    let ask = ask.with("conversation_id", format!("c-{conversation}"));
    let reply = fleet.client().ask(&ask).await?;
    let wrong = ask.expected_of(Model::new(0, KV_BYTES_PER_TOKEN)?).differs_from(&reply);
    ensure!(wrong.is_none(), "a wrong answer: {}", wrong.unwrap_or_default());
    Ok(reply)
}
