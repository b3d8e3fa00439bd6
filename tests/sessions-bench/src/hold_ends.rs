//! Second turns around the end of a hold: they find it before its end, and nothing of it after.

use std::time::Duration;

use anyhow::{Context, ensure};
use sluice_harness::table::Table;
use sluice_harness::{Ask, Fleet, FleetPlan, PolicyFile, budget};
use sluice_sim::words;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// How long turns are kept.
const TTL: Duration = Duration::from_secs(4);
/// When second turns come, in milliseconds from the end of the time; each with whether it is to find what was kept, or
/// nothing where the host's margin may have it either way.
const MOMENTS: [(i64, Option<bool>); 7] = [
    (-2_000, Some(true)),
    (-1_500, Some(true)),
    (-1_100, Some(true)),
    (-1_000, None),
    (-500, None),
    (0, Some(false)),
    (1_000, Some(false)),
];
/// Of a first prompt: enough to be kept.
const PROMPT_TOKENS: usize = 400;
const ANSWER_TOKENS: usize = 8;

/// Conversations at all moments, so many of each.
pub async fn run(conversations: u64) -> anyhow::Result<()> {
    let policy = PolicyFile::policy("vllm-defaults", "vllm-defaults")?;
    let policy = policy.settings(&format!("retain_ttl_ms = {}", TTL.as_millis()));
    let plan = FleetPlan::hosted(1, 1).decided_by(policy).engines("", "--no-prefix-caching");
    let fleet = std::sync::Arc::new(plan.start().await.context("the fleet does not start")?);
    let mut talks = JoinSet::new();
    for (at, (moment_ms, _)) in MOMENTS.iter().enumerate() {
        for number in 0..conversations {
            let (fleet, seed) = (fleet.clone(), at as u64 * 1_000 + number);
            talks.spawn(async move { (at, second_turn(&fleet, seed, *moment_ms).await) });
        }
    }
    let mut reused = vec![0_u64; MOMENTS.len()];
    while let Some(talk) = talks.join_next().await {
        let (at, found) = talk?;
        reused[at] += u64::from(found?);
    }
    let mut table = Table::new(&["second turn at", "conversations", "reused what was kept"]);
    for ((moment_ms, _), reused) in MOMENTS.iter().zip(&reused) {
        let sign = if *moment_ms < 0 { '-' } else { '+' };
        let at = format!("TTL {sign} {:.1} s", moment_ms.unsigned_abs() as f64 / 1e3);
        table.row([at, conversations.to_string(), reused.to_string()]);
    }
    println!(
        "Turns kept for {} s by a fixed time; the host begins no reading in the last second.\n{table}",
        TTL.as_secs()
    );
    let is_met = MOMENTS.iter().zip(&reused).all(|((_, expected), reused)| match expected {
        Some(true) => *reused == conversations,
        Some(false) => *reused == 0,
        None => true,
    });
    let measured = MOMENTS.iter().zip(&reused).map(|((ms, _), reused)| format!("{reused} at {ms:+} ms"));
    let measured = format!("of {conversations} each {}", measured.collect::<Vec<_>>().join(", "));
    let target = "all found before the last second, none from the end on, every answer right";
    println!("{}\n", budget::line("sessions.hold_ends", target, &measured, is_met));
    Ok(())
}

/// Whether a second turn at that moment found what was kept of the first.
async fn second_turn(fleet: &Fleet, seed: u64, moment_ms: i64) -> anyhow::Result<bool> {
    let prompt = words(seed, PROMPT_TOKENS);
    let first = Ask::completion(&prompt, ANSWER_TOKENS).with("conversation_id", format!("c-{seed}"));
    let text = right(fleet, &first).await?.text;
    let after_ms = (TTL.as_millis() as u64).saturating_add_signed(moment_ms);
    sleep_until(Instant::now() + Duration::from_millis(after_ms)).await;
    let second = Ask::completion(&format!("{prompt}{text}{}", words(seed + 500, 50)), ANSWER_TOKENS);
    let second = second.with("conversation_id", format!("c-{seed}"));
    Ok(right(fleet, &second).await?.cached_tokens > 0)
}

async fn right(fleet: &Fleet, ask: &Ask) -> anyhow::Result<sluice_harness::Reply> {
    let reply = fleet.client().ask(ask).await?;
    let wrong = ask.expected().differs_from(&reply);
    ensure!(wrong.is_none(), "a wrong answer: {}", wrong.unwrap_or_default());
    Ok(reply)
}
