//! Interleaved rounds: every case has a turn in each, so that a machine's slow moments fall on all alike.

use std::time::{Duration, Instant};

/// Something to time.
pub struct Case<'a> {
    /// For people.
    pub name: String,
    /// Bytes that one run moves.
    pub bytes: u64,
    /// Runs of a turn.
    pub repeats: u32,
    run: Box<dyn FnMut() -> anyhow::Result<Duration> + 'a>,
}

impl<'a> Case<'a> {
    /// `run` does it once and is timed; an error ends the bench.
    pub fn new(
        name: impl Into<String>,
        bytes: u64,
        repeats: u32,
        mut run: impl FnMut() -> anyhow::Result<()> + 'a,
    ) -> Self {
        let run = move || {
            let began = Instant::now();
            run()?;
            Ok(began.elapsed())
        };
        Self { name: name.into(), bytes, repeats, run: Box::new(run) }
    }

    /// `run` does it and says how long it took: others know better, or what surrounds it does not count.
    pub fn told(
        name: impl Into<String>,
        bytes: u64,
        run: impl FnMut() -> anyhow::Result<Duration> + 'a,
    ) -> Self {
        Self { name: name.into(), bytes, repeats: 1, run: Box::new(run) }
    }
}

/// One case's time, of one run.
#[derive(Debug, Clone)]
pub struct Time {
    /// For people.
    pub name: String,
    /// Bytes moved.
    pub bytes: u64,
    /// Of the best round.
    pub best: Duration,
    /// Of the middle round.
    pub median: Duration,
    /// Of all rounds, the shortest first.
    pub all: Vec<Duration>,
}

impl Time {
    /// Of the best round.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.best.as_secs_f64() / 1e9
    }

    /// Of the middle round.
    pub fn median_gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.median.as_secs_f64() / 1e9
    }
}

/// Times all cases, in the order given. A first turn of each is not counted: it touches the memory.
pub fn measure(mut cases: Vec<Case<'_>>, rounds: usize) -> anyhow::Result<Vec<Time>> {
    let mut times = vec![Vec::with_capacity(rounds); cases.len()];
    for round in 0..=rounds {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            let mut took = Duration::ZERO;
            for _ in 0..case.repeats {
                took += (case.run)()?;
            }
            if round > 0 {
                times.push(took / case.repeats);
            }
        }
    }
    let summed = cases.into_iter().zip(times).map(|(case, mut times)| {
        times.sort_unstable();
        let at = |index: usize| times.get(index).copied().unwrap_or_default();
        Time { name: case.name, bytes: case.bytes, best: at(0), median: at(times.len() / 2), all: times }
    });
    Ok(summed.collect())
}
