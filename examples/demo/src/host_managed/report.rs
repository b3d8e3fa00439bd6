//! What came of the stages, as tables, and whether it was good.

use std::time::Duration;

use sluice_harness::quantiles::quantile_ms;
use sluice_harness::table::Table;
use sluice_harness::workload::Outcome;

use super::Seen;
use crate::bars::bars;

/// Wrong answers and failures shown in full; the table counts them all.
const SHOWN_AT_MOST: usize = 3;

/// Prints it all; says whether it was good.
pub(super) fn print(stages: &[Seen]) -> bool {
    println!("\n{}\n{}", requests(stages), transfers(stages));
    println!(
        "TTFT is what streamed requests saw, a conversation's first turn apart from its later ones, which send all that was\n\
         said before. A pair of engines is moving KV when it has a copy under way or waiting. Hidden is what moved while its\n\
         prompt was still prefilled. Reused are prompt tokens that came back from the decode engine of the turn before.\n"
    );
    println!("TTFT, median\n{}", bars(&medians(stages), "ms"));
    for seen in stages {
        let amiss = seen.outcomes.iter().filter(|outcome| outcome.failed() || outcome.wrong.is_some());
        for outcome in amiss.take(SHOWN_AT_MOST) {
            let (stage, what) = (seen.stage.name, what(outcome));
            println!("{stage}, conversation {}, turn {}: {what}", outcome.conversation, outcome.turn);
        }
    }
    let sum = |count: fn(&Seen) -> usize| stages.iter().map(count).sum::<usize>();
    let (requests, failed, wrong) = (sum(|seen| seen.outcomes.len()), sum(failed), sum(wrong));
    let missing = sum(|seen| seen.expected_requests) - requests;
    let undecided = sum(|seen| seen.outcomes.iter().filter(|outcome| !decided(seen, outcome)).count());
    let took: Duration = stages.iter().map(|seen| seen.took).sum();
    let figures = |of: fn(&Seen) -> f64| stages.iter().map(of).sum::<f64>();
    println!(
        "host-managed: {requests} requests in {:.1} s, {failed} failed, {missing} never sent, {wrong} wrong, {undecided} not \
         decided by the policy; {:.1} GB moved, {:.0} transfers failed, {:.0} fallbacks",
        took.as_secs_f64(),
        figures(|seen| seen.figures.to_decode.bytes + seen.figures.to_prefill.bytes) / 1e9,
        figures(|seen| seen.figures.transfers_failed),
        figures(|seen| seen.figures.fallbacks),
    );
    let amiss = failed + wrong + missing + undecided;
    amiss == 0 && stages.iter().all(went_as_asked)
}

fn requests(stages: &[Seen]) -> Table {
    let mut table = Table::new(&[
        "KV moves by",
        "requests",
        "failed",
        "wrong",
        "first turn: TTFT p50 ms",
        "p99 ms",
        "later turns: TTFT p50 ms",
        "p99 ms",
    ]);
    for seen in stages {
        let (first, later) = (first_tokens(seen, true), first_tokens(seen, false));
        table.row([
            seen.stage.name.to_owned(),
            seen.outcomes.len().to_string(),
            failed(seen).to_string(),
            wrong(seen).to_string(),
            ms(&first, 0.5),
            ms(&first, 0.99),
            ms(&later, 0.5),
            ms(&later, 0.99),
        ]);
    }
    table
}

fn transfers(stages: &[Seen]) -> Table {
    let mut table = Table::new(&[
        "KV moves by",
        "GB to decode",
        "GB/s while moving",
        "hidden behind prefill %",
        "GB back to prefill",
        "tokens reused",
        "of prompt tokens %",
    ]);
    let ratio = |part: f64, whole: f64, digits: usize| match whole > 0.0 {
        true => format!("{:.digits$}", part / whole),
        false => "-".to_owned(),
    };
    for seen in stages {
        let (there, back) = (seen.figures.to_decode, seen.figures.to_prefill);
        let reused = seen.figures.reused_tokens;
        table.row([
            seen.stage.name.to_owned(),
            format!("{:.2}", there.bytes / 1e9),
            ratio((there.bytes + back.bytes) / 1e9, there.moving_s + back.moving_s, 1),
            ratio(100.0 * there.overlapped_bytes, there.bytes, 0),
            format!("{:.2}", back.bytes / 1e9),
            format!("{reused:.0}"),
            ratio(100.0 * reused, prompt_tokens(seen), 0),
        ]);
    }
    table
}

fn medians(stages: &[Seen]) -> Vec<(String, f64)> {
    let turns = [("first turn", true), ("later turns", false)];
    let rows = turns.into_iter().flat_map(|(turn, is_first)| {
        stages.iter().filter_map(move |seen| {
            let median_ms = quantile_ms(&first_tokens(seen, is_first), 0.5)?;
            Some((format!("{turn}, {}", seen.stage.name), median_ms))
        })
    });
    rows.collect()
}

fn first_tokens(seen: &Seen, is_first: bool) -> Vec<Duration> {
    let turns = seen.outcomes.iter().filter(|outcome| (outcome.turn == 0) == is_first);
    turns.filter_map(|outcome| outcome.reply.as_ref().ok()?.first_token).collect()
}

fn prompt_tokens(seen: &Seen) -> f64 {
    let replies = seen.outcomes.iter().filter_map(|outcome| outcome.reply.as_ref().ok());
    replies.filter_map(|reply| reply.prompt_tokens).sum::<u64>() as f64
}

fn ms(times: &[Duration], share: f64) -> String {
    quantile_ms(times, share).map_or("-".to_owned(), |ms| format!("{ms:.1}"))
}

fn failed(seen: &Seen) -> usize {
    seen.outcomes.iter().filter(|outcome| outcome.failed()).count()
}

fn wrong(seen: &Seen) -> usize {
    seen.outcomes.iter().filter(|outcome| !outcome.failed() && outcome.wrong.is_some()).count()
}

fn decided(seen: &Seen, outcome: &Outcome) -> bool {
    let decision = outcome.reply.as_ref().ok().and_then(|reply| reply.decision.as_ref());
    decision.is_some_and(|one| one.source == "policy" && one.generation >= seen.since_generation)
}

/// Whether what its settings ask for is what happened.
fn went_as_asked(seen: &Seen) -> bool {
    let figures = &seen.figures;
    figures.to_decode.bytes > 0.0
        && (figures.to_decode.overlapped_bytes > 0.0 || !seen.stage.pushes)
        && seen.stage.keeps_turns == (figures.reused_tokens > 0.0)
}

fn what(outcome: &Outcome) -> String {
    match (&outcome.reply, &outcome.wrong) {
        (Err(error), _) => error.clone(),
        (Ok(_), Some(wrong)) => wrong.clone(),
        (Ok(reply), None) => format!("answered {} {:?}", reply.status, reply.error),
    }
}
