//! Draws: in proportion, softly, evenly. The same seed draws the same worker.

use super::{least, mix};
use crate::Worker;

/// One worker drawn in proportion to its weight: twice the weight, twice as often. Weights that are not above
/// zero are never drawn.
///
/// Stable as [`least`](super::least) is: the same seed draws the same worker, and a worker that joins, leaves or changes its
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
/// as slow is tried again. A softness that is not above zero draws as [`least`](super::least) does. Stable as [`weighted`] is.
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

/// One worker drawn evenly by `seed`. Mix the seed with what must change the draw: [`mix`].
pub fn drawn<'a>(seed: u64, workers: impl IntoIterator<Item = Worker<'a>>) -> Option<Worker<'a>> {
    least(seed, workers, |_| 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pick::tests::fleet;
    use crate::testing::assert_even;

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
}
