//! Workers are drawn evenly.
//!
//! # When to use it
//! As a baseline, and where several hosts route to the same workers without knowing of each other: random
//! choices do not march in step as turns do. It ignores load, caches and sessions.

use sluice_policy_sdk::settings::NoSettings;
use sluice_policy_sdk::{Facts, Policy, Verdict, export, pick};

/// Draws a prefill worker and a decode worker for it, or a worker that serves alone.
#[derive(Debug)]
pub struct Random;

impl Policy for Random {
    fn configure(settings: &str) -> Result<Self, String> {
        NoSettings::parse(settings).map(|_| Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        // The seed alone would send a conversation to one worker for ever.
        let seed = pick::mix(facts.seed, facts.sequence);
        let pair = pick::drawn(seed, facts.paired_prefills()).and_then(|prefill| {
            pick::drawn(seed, facts.decodes_for(prefill)).map(|decode| (prefill, decode))
        });
        if let Some((prefill, decode)) = pair {
            return Verdict::pull(prefill.row(), decode.row()).because("drawn");
        }
        match pick::drawn(seed, facts.alone()) {
            Some(worker) => Verdict::unified(worker.row()).because("drawn"),
            // Nobody can serve. The host knows why, and words that for the client; a policy would guess.
            None => Verdict::UseDefault,
        }
    }
}

export!(Random);

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_policy_sdk::testing::{FactsBuilder, decode, prefill, unified};

    const DRAWS: u64 = 4_000;

    /// How often each of the expected answers came, in `DRAWS` decisions of one conversation.
    fn counts(facts: FactsBuilder, expected: &[Verdict]) -> Vec<u64> {
        let mut counts = vec![0; expected.len()];
        for sequence in 0..DRAWS {
            let verdict = Random.route(&facts.clone().sequence(sequence).build());
            let at = expected.iter().position(|one| one.clone().because("drawn") == verdict);
            counts[at.expect("one of the expected answers")] += 1;
        }
        counts
    }

    #[test]
    fn draws_evenly_and_independently() {
        let pairs =
            FactsBuilder::new().worker(prefill(1)).worker(prefill(2)).worker(decode(3)).worker(decode(4));
        let four = [Verdict::pull(0, 2), Verdict::pull(0, 3), Verdict::pull(1, 2), Verdict::pull(1, 3)];
        let alone = FactsBuilder::new().worker(unified(1)).worker(unified(2));
        let two = [Verdict::unified(0), Verdict::unified(1)];
        for (facts, expected) in [(pairs, &four[..]), (alone, &two[..])] {
            let even = DRAWS / expected.len() as u64;
            let counts = counts(facts, expected);
            // Five standard deviations of a binomial count are below 160 in both cases.
            assert!(counts.iter().all(|count| count.abs_diff(even) < 160), "{counts:?}");
        }
    }

    #[test]
    fn same_facts_same_answer() {
        let facts = FactsBuilder::new().worker(unified(1)).worker(unified(2)).seed(9).sequence(5).build();
        assert_eq!(Random.route(&facts), Random.route(&facts));
    }

    #[test]
    fn nobody_to_serve_is_the_hosts_to_say() {
        let lonely_decode = FactsBuilder::new().worker(decode(1)).build();
        assert_eq!(Random.route(&lonely_decode), Verdict::UseDefault);
    }

    #[test]
    fn has_no_settings() {
        assert!(Random::configure("{}").is_ok());
        let refused = Random::configure(r#"{"seed": 2}"#).expect_err("no such key");
        assert!(refused.contains("`seed`"), "{refused}");
    }
}
