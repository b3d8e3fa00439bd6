//! Second turns around the end of a hold: they find it before its end, and nothing of it after.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use sluice::config::{DECLINED_BEFORE_END_MS, HOLD_MARGIN_MS as MARGIN_MS};
use sluice_harness::table::Table;
use sluice_harness::{Ask, Fleet, FleetPlan, PolicyFile, Reply, budget};
use sluice_sim::words;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// For how long after a turn the next one may have what was kept of it.
const USABLE: Duration = Duration::from_secs(4);
/// What reaching the holder may take, as configured, in milliseconds.
const CONNECT_MS: u64 = 2_000;
/// When second turns come, in milliseconds from the end of [`USABLE`], and whether they are to find what was kept; close before the
/// end a busy machine may have it either way.
const MOMENTS: [(i64, Option<bool>); 5] =
    [(-1_000, Some(true)), (-500, None), (0, Some(false)), (1_000, Some(false)), (3_000, Some(false))];
/// Of a first prompt: enough to be kept.
const PROMPT_TOKENS: usize = 400;
const ANSWER_TOKENS: usize = 8;

/// What makes a hold end.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The policy's time, where the host moves KV.
    Hosted,
    /// The policy's time, where engines do.
    Policys,
    /// The engine's own time, its policy wanting more.
    Engines,
}

const ENDS: [(End, &str); 3] = [
    (End::Hosted, "host-managed"),
    (End::Policys, "bidirectional, policy's time"),
    (End::Engines, "bidirectional, engine's time"),
];

/// Conversations at all moments, so many of each.
pub async fn run(conversations: u64) -> anyhow::Result<()> {
    let counted =
        async |(end, name): (End, &'static str)| second_turns(end, conversations).await.context(name);
    let [one, other, third] = ENDS.map(counted);
    let reused: [[u64; MOMENTS.len()]; ENDS.len()] = tokio::try_join!(one, other, third)?.into();
    let mut heads = vec!["second turn at", "conversations"];
    heads.extend(ENDS.iter().map(|(_, name)| *name));
    let mut table = Table::new(&heads);
    for (at, (moment_ms, _)) in MOMENTS.iter().enumerate() {
        let counts = reused.iter().map(|counts| counts[at].to_string());
        table.row([end_and(*moment_ms), conversations.to_string()].into_iter().chain(counts));
    }
    println!(
        "Second turns that reused what was kept. The host begins no reading in the last {MARGIN_MS} ms of a hold, nor, of one that an \
         engine\nends by itself, so late that connecting might take too long, or that prefill declines; TTL is what remains: {} s here, of a \
         policy's {} s in\na host-managed pool, of a policy's {0} s or an engine's {} s in a bidirectional one.\n{table}",
        USABLE.as_secs(),
        USABLE.as_secs() + MARGIN_MS / 1_000,
        USABLE.as_secs() + (MARGIN_MS + CONNECT_MS + DECLINED_BEFORE_END_MS) / 1_000,
    );
    let is_met = reused.iter().all(|counts| {
        MOMENTS.iter().zip(counts).all(|((_, expected), reused)| match expected {
            Some(true) => *reused == conversations,
            Some(false) => *reused == 0,
            None => true,
        })
    });
    let at_least = |at: usize| reused.iter().map(|counts| counts[at]).min().unwrap_or(0);
    let at_most = |at: usize| reused.iter().map(|counts| counts[at]).max().unwrap_or(0);
    let measured = MOMENTS.iter().enumerate().filter_map(|(at, (moment_ms, expected))| {
        let count = if (*expected)? { at_least(at) } else { at_most(at) };
        Some(format!("{count} at {}", end_and(*moment_ms)))
    });
    let measured =
        format!("of {conversations} each {}, every answer right", measured.collect::<Vec<_>>().join(", "));
    let target = "all reuse at TTL - 1 s, none at TTL and later, every answer right";
    println!("{}\n", budget::line("sessions.hold_ends", target, &measured, is_met));
    Ok(())
}

fn end_and(moment_ms: i64) -> String {
    let seconds = moment_ms.unsigned_abs() as f64 / 1e3;
    match moment_ms {
        0 => "TTL".to_owned(),
        ..0 => format!("TTL - {seconds} s"),
        1.. => format!("TTL + {seconds} s"),
    }
}

/// How many second turns found what was kept, at each moment.
async fn second_turns(end: End, conversations: u64) -> anyhow::Result<[u64; MOMENTS.len()]> {
    let fleet = Arc::new(end.start().await.context("the fleet does not start")?);
    let mut talks = JoinSet::new();
    for (at, (moment_ms, _)) in MOMENTS.iter().enumerate() {
        for number in 0..conversations {
            let (fleet, seed) = (fleet.clone(), at as u64 * 1_000 + number);
            talks.spawn(async move { (at, second_turn(&fleet, seed, *moment_ms).await) });
        }
    }
    let mut reused = [0; MOMENTS.len()];
    while let Some(talk) = talks.join_next().await {
        let (at, found) = talk?;
        reused[at] += u64::from(found?);
    }
    Ok(reused)
}

impl End {
    async fn start(self) -> anyhow::Result<Fleet> {
        let usable_ms = USABLE.as_millis() as u64;
        let engines_ms = usable_ms + MARGIN_MS + CONNECT_MS + DECLINED_BEFORE_END_MS;
        let (plan, policy_ms) = match self {
            Self::Hosted => (FleetPlan::hosted(1, 1), usable_ms + MARGIN_MS),
            Self::Policys => (FleetPlan::bidirectional(1, 1), usable_ms),
            Self::Engines => {
                let plan = FleetPlan::bidirectional(1, 1).pool(&format!("decoder_ttl_ms = {engines_ms}\n"));
                (plan.engines("decode", &format!("--decoder-ttl-ms {engines_ms}")), 10 * engines_ms)
            }
        };
        let policy = PolicyFile::policy("vllm-defaults", "vllm-defaults")?;
        let policy =
            policy.settings(&format!("retain_ttl_ms = {policy_ms}\nkv_recompute_threshold_tokens = 0\n"));
        let mut plan = plan.engines("", "--no-prefix-caching").decided_by(policy);
        plan.host.server = format!("connect_timeout_ms = {CONNECT_MS}\n");
        Ok(plan.start().await?)
    }
}

/// Whether a second turn at that moment found what was kept of the first.
async fn second_turn(fleet: &Fleet, seed: u64, moment_ms: i64) -> anyhow::Result<bool> {
    let prompt = words(seed, PROMPT_TOKENS);
    let first = Ask::completion(&prompt, ANSWER_TOKENS).with("conversation_id", format!("c-{seed}"));
    let text = right(fleet, &first).await?.text;
    let after_ms = (USABLE.as_millis() as u64).saturating_add_signed(moment_ms);
    sleep_until(Instant::now() + Duration::from_millis(after_ms)).await;
    let second = Ask::completion(&format!("{prompt}{text}{}", words(seed + 500, 50)), ANSWER_TOKENS);
    let second = second.with("conversation_id", format!("c-{seed}"));
    Ok(right(fleet, &second).await?.cached_tokens > 0)
}

async fn right(fleet: &Fleet, ask: &Ask) -> anyhow::Result<Reply> {
    let reply = fleet.client().ask(ask).await?;
    let wrong = ask.expected().differs_from(&reply);
    ensure!(wrong.is_none(), "a wrong answer: {}", wrong.unwrap_or_default());
    Ok(reply)
}
