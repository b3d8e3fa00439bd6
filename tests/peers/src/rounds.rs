//! Interleaved rounds: in each, every case is run by every router in turn, so that what disturbs the machine for a while
//! disturbs all of them.

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use sluice_harness::quantiles::quantile_ms;

use crate::cases::{CASES, CONCURRENCIES, Case};
use crate::load::{Seen, run};
use crate::peer::{Kind, Peer};

/// A figure's place in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Which router.
    pub kind: Kind,
    /// Which kind of request.
    pub case: &'static str,
    /// Clients at a time.
    pub clients: usize,
}

/// One router's turn at one case.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// Right answers.
    pub requests: usize,
    /// Processor time of the router per right answer, in milliseconds; 0 where there is no router.
    pub cpu_ms: f64,
    /// From request to the end of the answer.
    pub p50_ms: f64,
    /// From request to the end of the answer.
    pub p99_ms: f64,
    /// Right answers per second.
    pub rate: f64,
}

/// All that was measured.
#[derive(Debug, Default)]
pub struct Measured {
    cells: HashMap<Cell, Vec<Figures>>,
    /// Requests without a right answer, with the first faults.
    pub failed: Vec<(Cell, usize, Vec<String>)>,
}

impl Measured {
    /// The best round of a cell: each figure's best, since whatever else runs on a machine only ever adds to it.
    pub fn best(&self, cell: Cell) -> Option<Figures> {
        self.cells.get(&cell)?.iter().copied().reduce(|best, next| Figures {
            requests: best.requests + next.requests,
            cpu_ms: best.cpu_ms.min(next.cpu_ms),
            p50_ms: best.p50_ms.min(next.p50_ms),
            p99_ms: best.p99_ms.min(next.p99_ms),
            rate: best.rate.max(next.rate),
        })
    }

    fn add(&mut self, cell: Cell, figures: Option<Figures>, seen: Seen) {
        self.cells.entry(cell).or_default().extend(figures);
        if seen.failed > 0 {
            self.failed.push((cell, seen.failed, seen.faults));
        }
    }
}

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Rounds.
    pub rounds: usize,
    /// One router's turn at one case.
    pub turn: Duration,
}

/// Runs all rounds. Says on standard error how far it is.
pub async fn measure(peers: &[Peer], plan: Plan) -> Measured {
    let mut measured = Measured::default();
    for round in 0..plan.rounds {
        for case in CASES {
            for clients in CONCURRENCIES {
                for peer in in_turn(peers, round).filter(|peer| peer.serves(case)) {
                    let (cell, figures, seen) = turn(peer, case, clients, plan.turn).await;
                    measured.add(cell, figures, seen);
                }
            }
        }
        let _ = writeln!(std::io::stderr(), "round {} of {} done", round + 1, plan.rounds);
    }
    measured
}

/// Another order each round: nobody always runs after the same neighbour.
fn in_turn(peers: &[Peer], round: usize) -> impl Iterator<Item = &Peer> {
    let first = round % peers.len().max(1);
    peers[first..].iter().chain(&peers[..first])
}

/// One router's turn at one case.
pub async fn turn(
    peer: &Peer,
    case: Case,
    clients: usize,
    lasting: Duration,
) -> (Cell, Option<Figures>, Seen) {
    let cell = Cell { kind: peer.kind, case: case.name, clients };
    let cpu = || peer.processes.map_or(Duration::ZERO, |tree| tree.cpu());
    let before = cpu();
    let seen = run(case.load(peer.address), clients, lasting).await;
    let used = cpu().saturating_sub(before);
    let requests = seen.times.len();
    let figures = quantile_ms(&seen.times, 0.5).zip(quantile_ms(&seen.times, 0.99));
    let figures = figures.map(|(p50_ms, p99_ms)| Figures {
        requests,
        cpu_ms: used.as_secs_f64() * 1_000.0 / requests as f64,
        p50_ms,
        p99_ms,
        rate: requests as f64 / lasting.as_secs_f64(),
    });
    (cell, figures, seen)
}
