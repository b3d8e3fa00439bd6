//! What a second turn waits for, with and without the KV that decode kept of the first: on emulators with the speed of the
//! engines that AWS measured, beside its figures.

use std::time::Duration;

use anyhow::{Context, ensure};
use sluice_harness::progress::Progress;
use sluice_harness::quantiles::quantile_ms;
use sluice_harness::table::Table;
use sluice_harness::{Ask, Fleet, FleetPlan, PolicyFile, budget};
use sluice_sim::{Model, words};

use crate::plot::{Chart, Series};

/// Emulated KV, in bytes: real copies, of far less than a real model has.
const KV_BYTES_PER_TOKEN: usize = 256;
/// What the client says in its second turn, and the answer before it, in tokens.
const TAIL_TOKENS: usize = 256;
const ANSWER_TOKENS: usize = 16;
/// Between a prompt's tokens as asked for and as counted: an answer that ended early.
const LENGTH_SLACK: usize = ANSWER_TOKENS + 1;

/// A model, as fast as it was seen to be.
struct Speed {
    name: &'static str,
    /// So that prompts of 2k and of the longest take what they took without reuse.
    prefill_tokens_per_s: f64,
    prefill_base_ms: f64,
    prompts: [usize; 5],
    /// Time to first token at the shortest and the longest prompt, off and on, as AWS measured it.
    aws_off_ms: (f64, f64),
    aws_on_ms: (f64, f64),
}

const SPEEDS: [Speed; 2] = [
    // Prefill took 153 ms for 2k tokens and 744 ms for 24k.
    Speed {
        name: "Qwen3-32B",
        prefill_tokens_per_s: 37_225.0,
        prefill_base_ms: 99.3,
        prompts: [2_000, 4_000, 8_000, 16_000, 24_000],
        aws_off_ms: (158.0, 778.0),
        aws_on_ms: (122.0, 460.0),
    },
    // Prefill took 500 ms for 2k tokens and 2,331 ms for 20k.
    Speed {
        name: "GLM-5-FP8",
        prefill_tokens_per_s: 9_831.0,
        prefill_base_ms: 296.6,
        prompts: [2_000, 4_000, 8_000, 16_000, 20_000],
        aws_off_ms: (500.0, 2_334.0),
        aws_on_ms: (358.0, 702.0),
    },
];

/// A way to move KV, with the policy's settings.
struct Stage {
    name: &'static str,
    settings: &'static str,
    reuses: bool,
}

const STAGES: [Stage; 4] = [
    Stage { name: "off, pull", settings: "retain_ttl_ms = 0", reuses: false },
    Stage { name: "on, pull", settings: "", reuses: true },
    Stage { name: "off, push", settings: "push = true\nretain_ttl_ms = 0", reuses: false },
    Stage { name: "on, push", settings: "push = true", reuses: true },
];

/// Of one stage, by prompt: median time to first token of second turns, and tokens reused.
struct Seen {
    ttft_ms: Vec<f64>,
    reused: Vec<u64>,
}

/// Runs all, so many conversations of each kind; `few` takes only the shortest and the longest prompts.
pub async fn run(conversations: u64, few: bool) -> anyhow::Result<Vec<Chart>> {
    println!(
        "Second turns on one prefill and one decode emulator, in a pool whose KV the host moves. No prefix caches. Real time;\n\
         prefill is as fast as it was on AWS' engines, KV is {KV_BYTES_PER_TOKEN} bytes a token, so that its copies are real but take nearly nothing:\n\
         AWS' figures hold 30 to 130 ms of transfers, and attention over what was reused, which no emulator computes.\n\
         Each second turn adds {TAIL_TOKENS} tokens. Every answer is checked.\n"
    );
    let mut charts = Vec::new();
    let mut budgets = Vec::new();
    let mut table = Table::new(&[
        "model",
        "prompt",
        "off, pull",
        "on, pull",
        "off, push",
        "on, push",
        "reused",
        "AWS off",
        "AWS on",
    ]);
    for speed in &SPEEDS {
        let last = speed.prompts.len() - 1;
        let prompts: Vec<_> =
            if few { vec![speed.prompts[0], speed.prompts[last]] } else { speed.prompts.into() };
        let mut seen = Vec::new();
        for stage in &STAGES {
            seen.push(
                stage
                    .run(speed, &prompts, conversations)
                    .await
                    .with_context(|| format!("{}, {}", speed.name, stage.name))?,
            );
        }
        for (at, prompt) in prompts.iter().enumerate() {
            let aws = |ends: (f64, f64)| match at {
                0 => format!("{:.0}", ends.0),
                _ if at + 1 == prompts.len() => format!("{:.0}", ends.1),
                _ => String::new(),
            };
            let measured = seen.iter().map(|seen| format!("{:.0}", seen.ttft_ms[at]));
            let reused = seen.iter().map(|seen| seen.reused[at]).max().unwrap_or(0).to_string();
            let named = [speed.name.to_owned(), prompt.to_string()].into_iter();
            table.row(named.chain(measured).chain([reused, aws(speed.aws_off_ms), aws(speed.aws_on_ms)]));
        }
        charts.push(speed.chart(&prompts, &seen));
        budgets.push(speed.budget(&seen));
    }
    println!("time to first token of second turns, ms\n{table}");
    budgets.iter().for_each(|budget| println!("{budget}"));
    println!();
    Ok(charts)
}

impl Speed {
    /// At the longest prompt, whichever way is worse.
    fn budget(&self, seen: &[Seen]) -> String {
        let gain = |off: &Seen, on: &Seen| Some(off.ttft_ms.last()? / on.ttft_ms.last()?);
        let worst = seen.chunks_exact(2).filter_map(|pair| gain(&pair[0], &pair[1])).fold(f64::MAX, f64::min);
        let target = self.aws_off_ms.1 / self.aws_on_ms.1;
        let name = format!("sessions.second_turn {}", self.name);
        budget::line(&name, &format!(">= {target:.1}x, as on AWS"), &format!("{worst:.1}x"), worst >= target)
    }

    fn chart(&self, prompts: &[usize], seen: &[Seen]) -> Chart {
        let ends = [prompts.first(), prompts.last()].map(|prompt| prompt.copied().unwrap_or(0) as f64);
        let aws = |name: &str, ms: (f64, f64)| Series {
            name: name.to_owned(),
            points: vec![(ends[0], ms.0), (ends[1], ms.1)],
        };
        let ours = STAGES.iter().zip(seen).map(|(stage, seen)| {
            let points =
                prompts.iter().zip(&seen.ttft_ms).map(|(prompt, ms)| (*prompt as f64, *ms)).collect();
            Series { name: stage.name.to_owned(), points }
        });
        Chart {
            title: format!("second turns, speed of {}", self.name),
            x: "prompt, tokens".to_owned(),
            y: "time to first token, ms".to_owned(),
            series: ours.chain([aws("AWS off", self.aws_off_ms), aws("AWS on", self.aws_on_ms)]).collect(),
        }
    }
}

impl Stage {
    async fn run(&self, speed: &Speed, prompts: &[usize], conversations: u64) -> anyhow::Result<Seen> {
        let fleet = self.start(speed).await?;
        let mut progress = Progress::new(prompts.len() * conversations as usize);
        let mut seen = Seen { ttft_ms: Vec::new(), reused: Vec::new() };
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
                progress.step(self.name);
            }
            seen.ttft_ms.push(quantile_ms(&times, 0.5).context("no second turn")?);
            seen.reused.push(least_reused);
        }
        progress.clear();
        Ok(seen)
    }

    async fn start(&self, speed: &Speed) -> anyhow::Result<Fleet> {
        let policy = PolicyFile::policy("adaptive", "adaptive")?.settings(self.settings);
        let plan = FleetPlan::hosted(1, 1).decided_by(policy);
        let plan = plan.engines(
            "",
            &format!("--no-prefix-caching --time-scale 1 --kv-bytes-per-token {KV_BYTES_PER_TOKEN}"),
        );
        let plan = plan.engines(
            "prefill",
            &format!(
                "--prefill-tokens-per-s {} --prefill-base-ms {}",
                speed.prefill_tokens_per_s, speed.prefill_base_ms
            ),
        );
        // Kept turns of several long conversations at a time.
        let mut plan = plan.engines("decode", "--blocks 16384");
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
    prompt.push_str(&first.text);
    prompt.push_str(&words(seed + 500, TAIL_TOKENS));
    let second = turn(fleet, &prompt, seed).await?;
    Ok((second.first_token.context("no token came")?, second.cached_tokens))
}

async fn turn(fleet: &Fleet, prompt: &str, conversation: u64) -> anyhow::Result<sluice_harness::Reply> {
    let ask = Ask::completion(prompt, ANSWER_TOKENS).streamed();
    let ask = ask.with("conversation_id", format!("c-{conversation}"));
    let reply = fleet.client().ask(&ask).await?;
    let wrong = ask.expected_of(Model::new(0, KV_BYTES_PER_TOKEN)?).differs_from(&reply);
    ensure!(wrong.is_none(), "a wrong answer: {}", wrong.unwrap_or_default());
    Ok(reply)
}
