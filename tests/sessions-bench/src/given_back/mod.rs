//! What a second turn waits for, with and without the KV that decode kept of the first: on emulators with the speed of the
//! engines that AWS measured, beside its figures.

mod speeds;
mod stages;

use anyhow::Context;
use sluice_harness::progress::Progress;
use sluice_harness::table::Table;

use crate::plot::Chart;
use speeds::{KV_BYTES_PER_TOKEN, SPEEDS};
use stages::{STAGES, TAIL_TOKENS};

/// Runs all, so many conversations of each kind; `few` takes only the shortest and the longest prompts.
pub async fn run(conversations: u64, few: bool) -> anyhow::Result<Vec<Chart>> {
    println!(
        "Second turns on one prefill and one decode emulator: in a pool whose KV the host moves (pull, push), and where engines move \
         it\nas vLLM does (its pull; bidirectional). No prefix caches. Real time; prefill is as fast as it was on AWS' engines. KV is \
         {KV_BYTES_PER_TOKEN} bytes\na token: where the host moves it the copies are real and take nearly nothing, between engines they take \
         what AWS saw.\nAWS' figures hold attention over what was reused, too, which no emulator computes. Each second turn adds \
         {TAIL_TOKENS} tokens.\nEvery answer is checked.\n"
    );
    let stages: Vec<_> = STAGES.iter().map(stages::Stage::name).collect();
    let mut heads = vec!["model", "prompt"];
    heads.extend(stages.iter().map(String::as_str));
    heads.extend(["reused", "AWS off", "AWS on"]);
    let mut table = Table::new(&heads);
    let (mut charts, mut budgets) = (Vec::new(), Vec::new());
    let mut progress = Progress::new(SPEEDS.len() * STAGES.len());
    for speed in &SPEEDS {
        let prompts = speed.prompts(few);
        let mut seen = Vec::new();
        for (stage, name) in STAGES.iter().zip(&stages) {
            let of_stage = stage.run(speed, &prompts, conversations).await;
            seen.push(of_stage.with_context(|| format!("{}, {name}", speed.name))?);
            progress.step(name);
        }
        for (at, prompt) in prompts.iter().enumerate() {
            let aws = |ends: (f64, f64)| match at {
                0 => format!("{:.0}", ends.0),
                _ if at + 1 == prompts.len() => format!("{:.0}", ends.1),
                _ => String::new(),
            };
            let measured = seen.iter().map(|seen| format!("{:.0}", seen.ttft_ms[at]));
            // The least of those that reuse anything.
            let reused =
                seen.iter().map(|seen| seen.reused[at]).filter(|reused| *reused > 0).min().unwrap_or(0);
            let named = [speed.name.to_owned(), prompt.to_string()].into_iter();
            let tail = [reused.to_string(), aws(speed.aws_off_ms), aws(speed.aws_on_ms)];
            table.row(named.chain(measured).chain(tail));
        }
        charts.push(speed.chart(&prompts, &seen));
        budgets.push(speed.budget(&seen));
    }
    progress.clear();
    println!("time to first token of second turns, ms\n{table}");
    budgets.iter().for_each(|budget| println!("{budget}"));
    println!();
    Ok(charts)
}
