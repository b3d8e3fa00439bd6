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
        if let Some(prefill) = pick::drawn(seed, facts.paired_prefills())
            && let Some(decode) = pick::drawn(seed, facts.decodes_for(prefill))
        {
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
    use sluice_policy_sdk::testing::{FactsBuilder, assert_even, decode, prefill, try_policy, unified};

    #[test]
    fn draws_evenly_and_independently() {
        let alone = (1..=3).fold(FactsBuilder::new(), |facts, id| facts.worker(unified(id)));
        let pairs =
            (1..=3).fold(alone.clone(), |facts, id| facts.worker(prefill(10 + id)).worker(decode(20 + id)));
        // Between conversations, and within one.
        let vary: [fn(FactsBuilder, u64) -> FactsBuilder; 2] = [FactsBuilder::seed, FactsBuilder::sequence];
        for (facts, kinds) in [(alone, 3), (pairs, 9)] {
            for vary in vary {
                assert_even(kinds, 9_000, |number| {
                    format!("{:?}", Random.route(&vary(facts.clone(), number).build()))
                });
            }
        }
    }

    #[test]
    fn a_host_would_take_it() {
        assert_eq!(try_policy::<Random>("{}"), Ok(()));
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
