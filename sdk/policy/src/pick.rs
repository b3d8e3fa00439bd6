//! Choose one worker among several. All choices are pure: the same facts give the same worker.

use crate::Worker;

mod by_chance;
mod mix;
mod pairs;

pub use by_chance::{drawn, softly, weighted};
pub use mix::mix;
pub use pairs::{Pair, Pairs, pair};

/// The worker of least cost.
///
/// Workers of equal cost are drawn evenly, by hashing `seed` with each worker's id: with [`Facts::seed`]
/// a conversation keeps its worker while costs stay equal, and different conversations spread. A worker that
/// joins or leaves moves only the conversations that it wins or loses. A cost that is not a number counts as
/// infinite.
///
/// ```
/// use sluice_policy_sdk::pick;
/// use sluice_policy_sdk::testing::{FactsBuilder, WorkerSpec, unified};
///
/// let busy = WorkerSpec { running: 9, ..unified(1) };
/// let facts = FactsBuilder::new().worker(busy).worker(unified(2)).build();
/// let idlest = pick::least(facts.seed, facts.alone(), |worker| worker.running() as f32);
/// assert_eq!(idlest.map(|worker| worker.id()), Some(2));
/// ```
///
/// [`Facts::seed`]: crate::Facts#structfield.seed
pub fn least<'a>(
    seed: u64,
    workers: impl IntoIterator<Item = Worker<'a>>,
    cost: impl Fn(Worker<'a>) -> f32,
) -> Option<Worker<'a>> {
    let mut least = Least::new(seed);
    workers.into_iter().for_each(|worker| least.offer(worker, cost(worker)));
    least.worker()
}

/// What [`least`] does, for loops that look for several workers in one pass over the table.
#[derive(Debug, Clone, Copy)]
pub struct Least<'a> {
    seed: u64,
    best: Option<Best<'a>>,
}

#[derive(Debug, Clone, Copy)]
struct Best<'a> {
    worker: Worker<'a>,
    cost: f32,
    /// The number that decides ties; known only once there was one.
    drawn: Option<u64>,
}

impl<'a> Least<'a> {
    /// Nobody yet.
    pub fn new(seed: u64) -> Self {
        Self { seed, best: None }
    }

    /// One more worker. The order of the workers changes nothing.
    pub fn offer(&mut self, worker: Worker<'a>, cost: f32) {
        let cost = if cost.is_nan() { f32::INFINITY } else { cost };
        match &mut self.best {
            Some(best) if cost > best.cost => {}
            Some(best) if cost == best.cost => {
                let drawn = mix(self.seed, worker.id());
                let to_beat = *best.drawn.get_or_insert_with(|| mix(self.seed, best.worker.id()));
                if drawn < to_beat {
                    *best = Best { worker, cost, drawn: Some(drawn) };
                }
            }
            _ => self.best = Some(Best { worker, cost, drawn: None }),
        }
    }

    /// Who costs least.
    pub fn worker(&self) -> Option<Worker<'a>> {
        self.best.map(|best| best.worker)
    }

    /// What that worker costs; infinite while there is none.
    pub fn cost(&self) -> f32 {
        self.best.map_or(f32::INFINITY, |best| best.cost)
    }
}

/// The worker whose turn it is: with [`Facts::sequence`] as `turn`, each worker of the list once a round.
///
/// [`Facts::sequence`]: crate::Facts#structfield.sequence
pub fn in_turn<'a>(turn: u64, workers: impl Iterator<Item = Worker<'a>> + Clone) -> Option<Worker<'a>> {
    let count = workers.clone().count() as u64;
    // A position below `count` fits usize, because `count` came from one.
    let position = turn.checked_rem(count)? as usize;
    let mut from_first = workers;
    from_first.nth(position)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Facts;
    use crate::testing::{FactsBuilder, assert_even, unified};

    pub(super) fn fleet(count: u64) -> Facts {
        (1..=count).fold(FactsBuilder::new(), |facts, id| facts.worker(unified(id))).build()
    }

    #[test]
    fn least_cost_wins_and_nan_never_beats_a_number() {
        let facts = fleet(3);
        let costs = [f32::NAN, 2.0, 3.0];
        let picked = least(7, facts.workers(), |worker| costs[worker.row() as usize]);
        assert_eq!(picked.map(Worker::id), Some(2));
        assert!(least(7, facts.workers(), |_| f32::NAN).is_some());
        assert!(least(7, fleet(0).workers(), |_| 0.0).is_none());
    }

    #[test]
    fn ties_are_even_and_stable() {
        let facts = fleet(4);
        let pick = |seed| least(seed, facts.workers(), |_| 1.0).map(Worker::row);
        assert_even(4, 4_000, pick);
        assert!((0..100).all(|seed| pick(seed) == pick(seed)));
    }

    #[test]
    fn several_passes_are_as_good_as_one() {
        let facts = fleet(6);
        for seed in 0..200 {
            let mut whole = Least::new(seed);
            let mut parts = [Least::new(seed), Least::new(seed)];
            for worker in facts.workers() {
                whole.offer(worker, 1.0);
                parts[worker.row() as usize % 2].offer(worker, 1.0);
            }
            let mut joined = Least::new(seed);
            for part in parts {
                joined.offer(part.worker().expect("three workers"), part.cost());
            }
            assert_eq!(joined.worker().map(Worker::row), whole.worker().map(Worker::row));
        }
    }

    #[test]
    fn each_worker_once_a_round() {
        let facts = fleet(3);
        let ids = [0, 1, 2, 3, u64::MAX].map(|turn| in_turn(turn, facts.workers()).map(Worker::id));
        assert_eq!(ids, [Some(1), Some(2), Some(3), Some(1), Some(1)]);
        assert!(in_turn(5, fleet(0).workers()).is_none());
    }

    #[test]
    fn a_tie_ignores_table_order() {
        let forward = FactsBuilder::new().worker(unified(1)).worker(unified(2)).build();
        let backward = FactsBuilder::new().worker(unified(2)).worker(unified(1)).build();
        for seed in 0..100 {
            assert_eq!(
                drawn(seed, forward.workers()).map(Worker::id),
                drawn(seed, backward.workers()).map(Worker::id)
            );
        }
    }
}
