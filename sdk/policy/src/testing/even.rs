//! Whether choices are even.

use std::collections::BTreeMap;

/// Choices are called uneven when even ones would come out so unevenly less than once in a thousand times. With
/// seeds that are fixed, a test that passes once passes always.
const STANDARD_NORMAL_AT_999: f64 = 3.090_232;

/// Pearson's chi-square test that all answers are equally likely: asks `draws` questions, numbered from 0, and
/// expects each of `kinds` answers equally often. Panics otherwise, with the counts.
///
/// ```
/// use sluice_policy_sdk::pick;
/// use sluice_policy_sdk::testing::{FactsBuilder, assert_even, unified};
///
/// let facts = FactsBuilder::new().worker(unified(1)).worker(unified(2)).worker(unified(3)).build();
/// assert_even(3, 3_000, |seed| pick::least(seed, facts.alone(), |_| 1.0).map(|worker| worker.row()));
/// ```
///
/// # Panics
/// When the answers are uneven, or when there are more or fewer kinds of them.
#[track_caller]
pub fn assert_even<A: Ord + std::fmt::Debug>(kinds: usize, draws: u64, mut ask: impl FnMut(u64) -> A) {
    let mut counts = BTreeMap::new();
    (0..draws).for_each(|number| *counts.entry(ask(number)).or_insert(0_u64) += 1);
    assert_eq!(counts.len(), kinds, "kinds of answers: {counts:?}");
    let (found, most) = (chi_square(counts.values().copied()), critical(kinds.saturating_sub(1)));
    assert!(found <= most, "uneven: chi-square {found:.1}, at most {most:.1}: {counts:?}");
}

/// How far counts are from even ones.
fn chi_square(counts: impl ExactSizeIterator<Item = u64> + Clone) -> f64 {
    let expected = counts.clone().sum::<u64>() as f64 / counts.len().max(1) as f64;
    counts.map(|count| (count as f64 - expected).powi(2) / expected).sum()
}

/// What chi-square exceeds once in a thousand times, by Wilson and Hilferty's approximation.
fn critical(degrees_of_freedom: usize) -> f64 {
    if degrees_of_freedom == 0 {
        return 0.0;
    }
    let k = degrees_of_freedom as f64;
    let spread = 2.0 / (9.0 * k);
    k * (1.0 - spread + STANDARD_NORMAL_AT_999 * spread.sqrt()).powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pick::mix;

    #[test]
    fn critical_values_are_those_of_tables() {
        for (degrees, expected) in [(1, 10.83), (2, 13.82), (3, 16.27), (7, 24.32), (30, 59.70)] {
            let found = critical(degrees);
            assert!((found / expected - 1.0_f64).abs() < 0.04, "{degrees}: {found}, not {expected}");
        }
    }

    #[test]
    fn even_choices_pass() {
        for kinds in [1, 2, 3, 8] {
            assert_even(kinds, 4_000, |number| mix(number, 5) % kinds as u64);
        }
    }

    #[test]
    #[should_panic(expected = "uneven")]
    fn a_tenth_too_many_shows() {
        // 55 of 100 instead of 50.
        assert_even(2, 4_000, |number| mix(number, 5) % 100 < 55);
    }

    #[test]
    #[should_panic(expected = "kinds of answers")]
    fn a_choice_that_never_comes_shows() {
        assert_even(3, 4_000, |number| number % 2);
    }
}
