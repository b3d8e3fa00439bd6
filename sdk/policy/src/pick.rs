//! Choose one worker among several. All choices are pure: the same facts give the same worker.

use crate::Worker;

/// The worker of least cost.
///
/// Workers of equal cost are drawn evenly, by hashing `seed` with each worker's id: with [`Facts::seed`]
/// a conversation keeps its worker while costs stay equal, and different conversations spread. A worker that
/// joins or leaves moves only the conversations that it wins or loses. A cost that is not a number counts as
/// infinite.
///
/// [`Facts::seed`]: crate::Facts#structfield.seed
pub fn least<'a>(
    seed: u64,
    workers: impl IntoIterator<Item = Worker<'a>>,
    cost: impl Fn(Worker<'a>) -> f32,
) -> Option<Worker<'a>> {
    let mut best: Option<Best<'a>> = None;
    workers.into_iter().for_each(|worker| {
        let cost = cost(worker);
        let cost = if cost.is_nan() { f32::INFINITY } else { cost };
        let Some(rival) = best.as_mut().filter(|best| cost >= best.cost) else {
            best = Some(Best { worker, cost, drawn: None });
            return;
        };
        if cost == rival.cost {
            let drawn = mix(seed, worker.id());
            let to_beat = *rival.drawn.get_or_insert_with(|| mix(seed, rival.worker.id()));
            if drawn < to_beat {
                *rival = Best { worker, cost, drawn: Some(drawn) };
            }
        }
    });
    best.map(|best| best.worker)
}

struct Best<'a> {
    worker: Worker<'a>,
    cost: f32,
    /// The number that decides ties; known only once there was one.
    drawn: Option<u64>,
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

/// One worker drawn evenly by `seed`. Mix the seed with what must change the draw: [`mix`].
pub fn drawn<'a>(seed: u64, workers: impl IntoIterator<Item = Worker<'a>>) -> Option<Worker<'a>> {
    least(seed, workers, |_| 0.0)
}

/// Mixes two numbers into one whose bits all depend on all bits of both. Not a cryptographic hash.
pub const fn mix(seed: u64, salt: u64) -> u64 {
    scramble(scramble(seed).wrapping_add(salt).wrapping_add(GOLDEN_GAMMA))
}

/// 2^64 divided by the golden ratio, made odd: keeps small neighbouring inputs apart, and zero from zero.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64: a bijection in which each input bit flips each output bit about half the time.
const fn scramble(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Facts;
    use crate::testing::{FactsBuilder, unified};

    fn fleet(count: u64) -> Facts {
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
        let mut counts = [0_u32; 4];
        for seed in 0..4_000 {
            let picked = least(seed, facts.workers(), |_| 1.0).expect("four workers");
            assert_eq!(least(seed, facts.workers(), |_| 1.0).map(Worker::row), Some(picked.row()));
            counts[picked.row() as usize] += 1;
        }
        // 1,000 expected; five standard deviations are 137.
        assert!(counts.iter().all(|count| (863..=1_137).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_leaving_worker_moves_only_its_own_conversations() {
        let (all, fewer) = (fleet(5), fleet(4));
        for seed in 0..500 {
            let before = drawn(seed, all.workers()).expect("five workers").id();
            let after = drawn(seed, fewer.workers()).expect("four workers").id();
            assert!(before == after || before == 5, "seed {seed} moved from {before} to {after}");
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
