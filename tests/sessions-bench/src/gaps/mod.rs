//! Leases from turn gaps, beside fixed times: how often the next turn finds its KV, and what that holds meanwhile.

pub mod behaviour;
mod dice;
pub mod keeper;
pub mod world;

use sluice_harness::table::Table;

use behaviour::{ALL, Behaviour, conversations};
use keeper::Keeper;
use world::{Outcome, simulate};

use crate::plot::{Chart, Series};

/// Of a KV block.
const BLOCK_TOKENS: u32 = 16;
/// Between the starts of two conversations, in milliseconds.
const APART_MS: f64 = 4_000.0;
/// Blocks of an engine in which turns crowd each other out: 640,000 tokens, about what 80 GB hold of an 8B model.
const BOUNDED_BLOCKS: u64 = 40_000;
/// Fixed times that are compared, in milliseconds. The last is vLLM's.
const FIXED_MS: [u32; 3] = [30_000, 120_000, 480_000];

/// One keeper's row.
struct Row {
    keeper: String,
    outcome: Outcome,
}

/// All keepers over the same conversations.
fn compare(behaviour: Behaviour, count: usize, blocks: Option<u64>, seed: u64) -> anyhow::Result<Vec<Row>> {
    let conversations = conversations(behaviour, count, APART_MS, seed);
    let mut keepers: Vec<_> =
        FIXED_MS.map(|ttl_ms| (format!("fixed {} s", ttl_ms / 1_000), Keeper::Fixed(ttl_ms))).into();
    keepers.push(("adaptive".to_owned(), Keeper::adaptive("{}")?));
    let run = |(keeper, decides): (String, Keeper)| Row {
        keeper,
        outcome: simulate(&conversations, &decides, blocks),
    };
    Ok(keepers.into_iter().map(run).collect())
}

/// Compares all, and prints it; a chart of each comparison.
pub fn run(count: usize, seed: u64) -> anyhow::Result<Vec<Chart>> {
    let mut charts = Vec::new();
    for (blocks, bound) in [(None, "no bound"), (Some(BOUNDED_BLOCKS), "bounded")] {
        let mut table = Table::new(&[
            "memory",
            "conversations",
            "keeper",
            "hit rate %",
            "block-s, 1,000s",
            "of fixed 480 s %",
            "crowded out",
            "asked",
        ]);
        for (behaviour, name) in ALL {
            let rows = compare(behaviour, count, blocks, seed)?;
            let most = longest(&rows).held_block_seconds;
            for Row { keeper, outcome } in &rows {
                table.row([
                    bound.to_owned(),
                    name.to_owned(),
                    keeper.clone(),
                    format!("{:.1}", 100.0 * outcome.hit_rate()),
                    format!("{:.0}", outcome.held_block_seconds / 1_000.0),
                    format!("{:.1}", 100.0 * outcome.held_block_seconds / most),
                    outcome.crowded.to_string(),
                    outcome.asked.to_string(),
                ]);
            }
            charts.push(chart(&format!("{name}, {bound}"), &rows, most));
        }
        println!("{table}");
    }
    Ok(charts)
}

/// What the longest fixed time came to: what all is measured by.
fn longest(rows: &[Row]) -> Outcome {
    rows.get(FIXED_MS.len() - 1).map_or_else(Outcome::default, |row| row.outcome)
}

fn chart(title: &str, rows: &[Row], most: f64) -> Chart {
    let at = |outcome: &Outcome| (100.0 * outcome.held_block_seconds / most, 100.0 * outcome.hit_rate());
    let series = |row: &Row| Series { name: row.keeper.clone(), points: vec![at(&row.outcome)] };
    Chart {
        title: title.to_owned(),
        x: "held block-seconds, % of fixed 480 s".to_owned(),
        y: "hit rate, %".to_owned(),
        series: rows.iter().map(series).collect(),
    }
}

#[cfg(test)]
mod tests;
