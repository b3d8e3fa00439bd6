//! A prefill worker, and a decode worker that can take its KV blocks.

use super::Least;
use crate::{Facts, Worker};

/// The prefill worker of least cost that some decode worker can take KV blocks from, and the decode worker of
/// least cost that can take them. Both as [`least`](super::least) picks; draining workers are left out.
///
/// ```
/// use sluice_policy_sdk::testing::{FactsBuilder, WorkerSpec, decode, prefill};
/// use sluice_policy_sdk::{Worker, pick};
///
/// let facts = FactsBuilder::new()
///     .worker(WorkerSpec { group: 1, ..prefill(1) }) // nobody can take its KV blocks
///     .worker(WorkerSpec { running: 3, ..prefill(2) })
///     .worker(decode(3))
///     .build();
/// let requests = |worker: Worker<'_>| worker.running() as f32;
/// let (prefill, decode) = pick::pair(&facts, requests, requests).expect("a pair");
/// assert_eq!((prefill.id(), decode.id()), (2, 3));
/// ```
pub fn pair<'a>(
    facts: &'a Facts,
    prefill_cost: impl Fn(Worker<'a>) -> f32,
    decode_cost: impl Fn(Worker<'a>) -> f32,
) -> Option<(Worker<'a>, Worker<'a>)> {
    let mut pairs = Pairs::new(facts.seed);
    facts.prefills().for_each(|worker| pairs.offer_prefill(worker, prefill_cost(worker)));
    facts.decodes().for_each(|worker| pairs.offer_decode(worker, decode_cost(worker)));
    pairs.least().map(|pair| (pair.prefill, pair.decode))
}

/// What [`pair`] does, for loops that look for several workers in one pass over the table.
#[derive(Debug, Clone)]
pub struct Pairs<'a> {
    seed: u64,
    /// Few fleets have more than one or two KV layout groups, so that a list is faster than a map.
    groups: Vec<Group<'a>>,
}

/// Two workers, and what they cost together.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// Who prefills.
    pub prefill: Worker<'a>,
    /// Who decodes.
    pub decode: Worker<'a>,
    /// What prefilling costs.
    pub prefill_cost: f32,
    /// What decoding costs.
    pub decode_cost: f32,
}

#[derive(Debug, Clone)]
struct Group<'a> {
    number: u16,
    prefill: Least<'a>,
    decode: Least<'a>,
}

impl<'a> Pairs<'a> {
    /// Nobody yet.
    pub fn new(seed: u64) -> Self {
        Self { seed, groups: Vec::new() }
    }

    /// One more prefill worker.
    pub fn offer_prefill(&mut self, worker: Worker<'a>, cost: f32) {
        self.group(worker).prefill.offer(worker, cost);
    }

    /// One more decode worker.
    pub fn offer_decode(&mut self, worker: Worker<'a>, cost: f32) {
        self.group(worker).decode.offer(worker, cost);
    }

    /// The pair so far, where all that were offered are of one KV layout group: what a further worker of that group
    /// has to beat.
    pub fn of_one_group(&self) -> Option<Pair<'a>> {
        if self.groups.len() == 1 { self.least() } else { None }
    }

    /// The pair. Its prefill worker is chosen first, for its own cost alone.
    pub fn least(&self) -> Option<Pair<'a>> {
        let mut prefill = Least::new(self.seed);
        let whole = self.groups.iter().filter(|group| group.decode.best.is_some());
        whole.filter_map(|group| group.prefill.best).for_each(|best| prefill.offer(best.worker, best.cost));
        let chosen = prefill.best?;
        let group = self.groups.iter().find(|group| group.number == chosen.worker.group())?;
        let decode = group.decode.best?;
        Some(Pair {
            prefill: chosen.worker,
            decode: decode.worker,
            prefill_cost: chosen.cost,
            decode_cost: decode.cost,
        })
    }

    fn group(&mut self, worker: Worker<'a>) -> &mut Group<'a> {
        let number = worker.group();
        let at = self.groups.iter().position(|group| group.number == number).unwrap_or_else(|| {
            let nobody = Least::new(self.seed);
            self.groups.push(Group { number, prefill: nobody, decode: nobody });
            self.groups.len() - 1
        });
        &mut self.groups[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pick::least;
    use crate::testing::RandomFacts;

    /// What `pair` promises, by the longer way.
    #[test]
    fn a_pair_is_the_least_of_each_side() {
        let cost = |worker: Worker<'_>| worker.running() as f32;
        let mut pairs = 0;
        for facts in RandomFacts::new(5).take(1_000) {
            let prefill = least(facts.seed, facts.paired_prefills(), cost);
            let decode = prefill.and_then(|prefill| least(facts.seed, facts.decodes_for(prefill), cost));
            let rows = |pair: (Worker<'_>, Worker<'_>)| (pair.0.row(), pair.1.row());
            assert_eq!(pair(&facts, cost, cost).map(rows), prefill.zip(decode).map(rows));
            pairs += usize::from(prefill.is_some());
        }
        assert!(pairs > 100, "{pairs}");
    }
}
