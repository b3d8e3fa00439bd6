//! Choose one worker among several. All choices are pure: the same facts give the same worker.

use crate::{Facts, Worker};

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

/// The prefill worker of least cost that some decode worker can take KV blocks from, and the decode worker of
/// least cost that can take them. Both as [`least`] picks; draining workers are left out.
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

/// One worker drawn in proportion to its weight: twice the weight, twice as often. Weights that are not above
/// zero are never drawn.
///
/// Stable as [`least`] is: the same seed draws the same worker, and a worker that joins, leaves or changes its
/// weight moves only the conversations that it wins or loses.
///
/// ```
/// use sluice_policy_sdk::pick;
/// use sluice_policy_sdk::testing::{FactsBuilder, WorkerSpec, unified};
///
/// // New hardware takes three requests of four.
/// let fast = WorkerSpec { prefill_tokens_per_s: 30_000.0, ..unified(1) };
/// let facts = FactsBuilder::new().worker(fast).worker(unified(2)).build();
/// let drawn = |seed| pick::weighted(seed, facts.alone(), |worker| worker.prefill_tokens_per_s());
/// let of_fast = (0..4_000).filter(|seed| drawn(*seed).is_some_and(|worker| worker.id() == 1)).count();
/// assert!((2_900..3_100).contains(&of_fast));
/// ```
pub fn weighted<'a>(
    seed: u64,
    workers: impl IntoIterator<Item = Worker<'a>>,
    weight: impl Fn(Worker<'a>) -> f32,
) -> Option<Worker<'a>> {
    let able = workers.into_iter().filter(|worker| weight(*worker) > 0.0);
    // Of exponentially distributed waiting times, each is the first in proportion to its rate.
    least(seed, able, |worker| (waiting_time(seed, worker) / f64::from(weight(worker))) as f32)
}

/// Mostly the worker of least cost, others now and then: costs that differ by `softness` make the cheaper one
/// e times as likely (a softmax of `-cost / softness`).
///
/// Several hosts that see the same figures then do not all run to the same worker, and one that was measured
/// as slow is tried again. A softness that is not above zero draws as [`least`] does. Stable as [`weighted`] is.
pub fn softly<'a>(
    seed: u64,
    workers: impl IntoIterator<Item = Worker<'a>>,
    softness: f32,
    cost: impl Fn(Worker<'a>) -> f32,
) -> Option<Worker<'a>> {
    // Written so that a softness which is not a number has no effect either.
    let soft = softness > 0.0;
    least(seed, workers, |worker| {
        let noise = if soft { softness * ln(waiting_time(seed, worker)) as f32 } else { 0.0 };
        cost(worker) + noise
    })
}

/// Exponentially distributed with mean 1, always above zero.
fn waiting_time(seed: u64, worker: Worker<'_>) -> f64 {
    /// So that it has nothing to do with the draw that decides ties.
    const ANOTHER_DRAW: u64 = 0x5eed;
    /// 2^53: as many steps as a number from 0 to 1 can show evenly.
    const STEPS: f64 = 9_007_199_254_740_992.0;
    let step = (mix(mix(seed, ANOTHER_DRAW), worker.id()) >> 11) as f64;
    -ln((step + 0.5) / STEPS)
}

/// The natural logarithm of a number above zero. Of plain arithmetic, so that it has the same bits on every
/// machine, which the libraries' do not promise.
fn ln(number: f64) -> f64 {
    const MANTISSA_BITS: u32 = 52;
    const EXPONENT_OF_1: i64 = 1_023;
    let bits = number.to_bits();
    let exponent = (bits >> MANTISSA_BITS) as i64 - EXPONENT_OF_1;
    let mantissa = f64::from_bits((bits & ((1 << MANTISSA_BITS) - 1)) | 1.0_f64.to_bits());
    // The series of 2 artanh((m - 1) / (m + 1)); at most 1/3, so that 15 terms are exact to the last few bits.
    let part = (mantissa - 1.0) / (mantissa + 1.0);
    let terms = (0..15).rev().fold(0.0, |sum, term| sum * part * part + 1.0 / f64::from(2 * term + 1));
    2.0 * part * terms + exponent as f64 * std::f64::consts::LN_2
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
    use crate::testing::{FactsBuilder, RandomFacts, assert_even, unified};

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

    #[test]
    fn logarithms() {
        for number in [1e-17, 0.1, 0.5, 0.999_999, 1.0, 1.5, 2.0, 1e9] {
            assert!((ln(number) - number.ln()).abs() <= 1e-14 * number.ln().abs().max(1.0), "{number}");
        }
    }

    #[test]
    fn weights_are_shares() {
        let facts = fleet(4);
        let weights = [1.0, 2.0, 5.0, 0.0];
        let weight = |worker: Worker<'_>| weights[worker.row() as usize];
        // Eight kinds as likely: as many for each worker as its weight.
        let mut kinds = [0, 0, 0];
        assert_even(8, 8_000, |seed| {
            let row = weighted(seed, facts.workers(), weight).expect("weights").row() as usize;
            kinds[row] += 1;
            [0, 1, 3][row] + kinds[row] % weights[row] as u64
        });
        assert!(weighted(1, facts.workers(), |_| f32::NAN).is_none());
    }

    #[test]
    fn soft_costs_are_odds() {
        let facts = fleet(2);
        let cost = |worker: Worker<'_>| worker.row() as f32 * 3.0;
        let firsts = |softness: f32| {
            let pick = |seed| softly(seed, facts.workers(), softness, cost).expect("two").row();
            (0..4_000).filter(|seed| pick(*seed) == 0).count()
        };
        // 1 / (1 + 1/e) of 4,000; five standard deviations are 140.
        assert!(firsts(3.0).abs_diff(2_924) < 140, "{}", firsts(3.0));
        assert_eq!([firsts(0.0), firsts(-1.0), firsts(f32::NAN), firsts(0.01)], [4_000; 4]);
    }

    #[test]
    fn a_change_of_weight_moves_only_its_own() {
        let facts = fleet(4);
        for seed in 0..500 {
            let before = weighted(seed, facts.workers(), |_| 1.0).expect("four").id();
            let after = weighted(seed, facts.workers(), |one| if one.id() == 4 { 2.0 } else { 1.0 });
            let after = after.expect("four").id();
            assert!(before == after || after == 4, "seed {seed} moved from {before} to {after}");
        }
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
