//! What came of the run, as a table, and whether it was good.

use std::time::Duration;

use sluice_harness::quantiles::quantile_ms;
use sluice_harness::table::Table;
use sluice_harness::workload::Outcome;

use super::{Seen, Turn};

/// Wrong answers and failures shown in full; the table counts them all.
const SHOWN_AT_MOST: usize = 3;

/// Prints it all; says whether the run was good.
pub(super) fn print(seen: &Seen) -> bool {
    println!("\n{}", table(seen));
    println!(
        "TTFT is what streamed requests saw; cached tokens are prompt tokens that the prefilling engine had already; MB\n\
         moved is KV between engines. The policies decided one after another over the same conversations, so a later one\n\
         found longer histories and fuller caches."
    );
    match &seen.refusal {
        Some(why) => println!("The broken file was refused: {why}"),
        None => println!("The broken file was NOT refused."),
    }
    let failed: Vec<_> = seen.outcomes.iter().filter(|outcome| outcome.failed()).collect();
    let wrong: Vec<_> =
        seen.outcomes.iter().filter(|outcome| !outcome.failed() && outcome.wrong.is_some()).collect();
    for outcome in failed.iter().take(SHOWN_AT_MOST).chain(wrong.iter().take(SHOWN_AT_MOST)) {
        println!("conversation {}, turn {}: {}", outcome.conversation, outcome.turn, what(outcome));
    }
    let undecided = seen.outcomes.iter().filter(|outcome| !decided_by_policy(outcome)).count();
    let missing = seen.expected_requests.saturating_sub(seen.outcomes.len());
    println!(
        "engine-managed: {} requests in {:.1} s, {} failed, {missing} never sent, {} wrong, {undecided} not decided by the policy, \
         {} swaps, broken file {}",
        seen.outcomes.len(),
        seen.took.as_secs_f64(),
        failed.len(),
        wrong.len(),
        seen.turns.len() - 1,
        if seen.refusal.is_some() { "refused" } else { "accepted" },
    );
    let swaps_worked = seen.turns.iter().all(|turn| outcomes_of(seen, turn).next().is_some());
    failed.is_empty()
        && wrong.is_empty()
        && undecided + missing == 0
        && swaps_worked
        && seen.refusal.is_some()
}

fn table(seen: &Seen) -> Table {
    let mut table = Table::new(&[
        "policy",
        "requests",
        "failed",
        "wrong",
        "TTFT p50 ms",
        "TTFT p95 ms",
        "TPOT p50 ms",
        "prompt tokens",
        "cached tokens",
        "cached %",
        "MB moved",
    ]);
    for (index, turn) in seen.turns.iter().enumerate() {
        let outcomes: Vec<_> = outcomes_of(seen, turn).collect();
        let replies = || outcomes.iter().filter_map(|outcome| outcome.reply.as_ref().ok());
        let first_tokens: Vec<Duration> = replies().filter_map(|reply| reply.first_token).collect();
        let per_token: Vec<Duration> = replies().filter_map(|reply| reply.per_token).collect();
        let prompt: u64 = replies().filter_map(|reply| reply.prompt_tokens).sum();
        let cached: u64 = replies().map(|reply| reply.cached_tokens).sum();
        let bytes_after = seen.turns.get(index + 1).map_or(seen.bytes_at_end, |next| next.bytes_before);
        let ms =
            |times: &[Duration], share| quantile_ms(times, share).map_or("-".into(), |ms| format!("{ms:.1}"));
        table.row([
            turn.policy.to_owned(),
            outcomes.len().to_string(),
            outcomes.iter().filter(|outcome| outcome.failed()).count().to_string(),
            outcomes.iter().filter(|outcome| outcome.wrong.is_some()).count().to_string(),
            ms(&first_tokens, 0.5),
            ms(&first_tokens, 0.95),
            ms(&per_token, 0.5),
            prompt.to_string(),
            cached.to_string(),
            format!("{:.0}", 100.0 * cached as f64 / prompt.max(1) as f64),
            format!("{:.1}", (bytes_after - turn.bytes_before) / 1e6),
        ]);
    }
    table
}

/// The requests that a policy decided. A request without a decision failed; it is shown with the last policy.
fn outcomes_of<'a>(seen: &'a Seen, turn: &'a Turn) -> impl Iterator<Item = &'a Outcome> {
    let turn_of = |outcome: &Outcome| {
        let decision = outcome.reply.as_ref().ok().and_then(|reply| reply.decision.as_ref());
        let generation = decision.map_or(u64::MAX, |decision| decision.generation);
        seen.turns.iter().rev().find(|turn| turn.since_generation <= generation).map(|turn| turn.policy)
    };
    seen.outcomes.iter().filter(move |outcome| turn_of(outcome) == Some(turn.policy))
}

fn decided_by_policy(outcome: &Outcome) -> bool {
    let decision = outcome.reply.as_ref().ok().and_then(|reply| reply.decision.as_ref());
    decision.is_some_and(|decision| decision.source == "policy")
}

fn what(outcome: &Outcome) -> String {
    match (&outcome.reply, &outcome.wrong) {
        (Err(error), _) => error.clone(),
        (Ok(_), Some(wrong)) => wrong.clone(),
        (Ok(_), None) => String::new(),
    }
}
