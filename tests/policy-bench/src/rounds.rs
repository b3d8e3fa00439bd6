//! Interleaved rounds: every case has a turn in each, so that a machine's slow moments fall on all alike.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Rounds.
    pub rounds: usize,
    /// One case's turn in a round.
    pub turn: Duration,
}

/// Something to time.
pub struct Case<'a> {
    /// For people.
    pub name: String,
    run: Box<dyn FnMut() -> anyhow::Result<()> + 'a>,
}

impl<'a> Case<'a> {
    /// `ask` does it once; an error ends the bench.
    pub fn new<A, E>(name: impl Into<String>, mut ask: impl FnMut() -> Result<A, E> + 'a) -> Self
    where
        anyhow::Error: From<E>,
    {
        let run = move || {
            black_box(ask()?);
            anyhow::Ok(())
        };
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// One case's time, of one call.
#[derive(Debug, Clone)]
pub struct Time {
    /// For people.
    pub name: String,
    /// Of the best round.
    pub best: Duration,
    /// Of the middle round.
    pub median: Duration,
}

/// Runs that one turn is cut into at least, so that a clock reading is nothing beside them.
const BATCH: u32 = 16;

/// Times all cases, in the order given.
pub fn measure(mut cases: Vec<Case<'_>>, plan: Plan) -> anyhow::Result<Vec<Time>> {
    let mut times = vec![Vec::with_capacity(plan.rounds); cases.len()];
    for _ in 0..plan.rounds {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            times.push(turn(case, plan.turn)?);
        }
    }
    let summed = cases.into_iter().zip(times).map(|(case, mut times)| {
        times.sort_unstable();
        let at = |index: usize| times.get(index).copied().unwrap_or_default();
        Time { name: case.name, best: at(0), median: at(times.len() / 2) }
    });
    Ok(summed.collect())
}

/// The mean of the best batch of a turn: a batch that was interrupted says nothing.
fn turn(case: &mut Case<'_>, lasting: Duration) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let mut best = Duration::MAX;
    let mut batch = 1;
    while began.elapsed() < lasting {
        let from = Instant::now();
        for _ in 0..batch {
            (case.run)()?;
        }
        best = best.min(from.elapsed() / batch);
        batch = BATCH;
    }
    Ok(best)
}
