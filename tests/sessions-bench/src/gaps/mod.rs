//! Leases from turn gaps, beside fixed times: how often the next turn finds its KV, and what that holds meanwhile.

pub mod behaviour;
mod dice;
pub mod keeper;
pub mod world;

use sluice_harness::budget::line;
use sluice_harness::table::Table;

use behaviour::{Behaviour, conversations};
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

/// What `adaptive` holds and misses beside the longest fixed time, where nothing bounds what is kept.
struct Promise {
    behaviour: Behaviour,
    name: &'static str,
    /// Of the fixed time's block-seconds, at most, in percent.
    held_at_most: f64,
    /// Of all later turns, so many fewer find theirs kept, at most, in percent.
    missed_at_most: f64,
}

/// People are the hard case: their gaps have a long tail. Of one-shot conversations so few come back that most are let go
/// before.
const PROMISES: [Promise; 6] = [
    Promise { behaviour: Behaviour::Loops, name: "agent loops", held_at_most: 20.0, missed_at_most: 1.0 },
    Promise { behaviour: Behaviour::Chat, name: "human chat", held_at_most: 60.0, missed_at_most: 18.0 },
    Promise {
        behaviour: Behaviour::Bursts,
        name: "bursts of tool calls",
        held_at_most: 60.0,
        missed_at_most: 7.0,
    },
    Promise { behaviour: Behaviour::OneShot, name: "one-shot", held_at_most: 30.0, missed_at_most: 35.0 },
    Promise { behaviour: Behaviour::Mix, name: "a mix of these", held_at_most: 48.0, missed_at_most: 7.0 },
    Promise {
        behaviour: Behaviour::Change,
        name: "loops that become chats",
        held_at_most: 55.0,
        missed_at_most: 10.0,
    },
];

/// What came of a promise.
struct Found {
    measured: String,
    is_kept: bool,
}

impl Promise {
    fn held_against(&self, rows: &[Row]) -> Found {
        let (fixed, adaptive) = (longest(rows), rows.last().map_or_else(Outcome::default, |row| row.outcome));
        let held = 100.0 * adaptive.held_block_seconds / fixed.held_block_seconds;
        let missed = 100.0 * (fixed.hit_rate() - adaptive.hit_rate());
        let measured = format!("{held:.1}% held, {missed:.1} of 100 turns missed");
        Found { measured, is_kept: held <= self.held_at_most && missed <= self.missed_at_most }
    }

    fn line(&self, rows: &[Row]) -> String {
        let Found { measured, is_kept } = self.held_against(rows);
        let target = format!(
            "<= {}% of fixed 480 s held, <= {} of 100 turns missed",
            self.held_at_most, self.missed_at_most
        );
        line(&format!("sessions.leases {}", self.name), &target, &measured, is_kept)
    }
}

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
    let (mut charts, mut budgets) = (Vec::new(), Vec::new());
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
        for promise in &PROMISES {
            let name = promise.name;
            let rows = compare(promise.behaviour, count, blocks, seed)?;
            if blocks.is_none() {
                budgets.push(promise.line(&rows));
            }
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
    budgets.iter().for_each(|budget| println!("{budget}"));
    println!();
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
