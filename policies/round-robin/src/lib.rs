//! Workers take turns, whatever they are doing.
//!
//! # When to use it
//! As a baseline to measure others against, and for fleets of equal workers under requests of about equal
//! size. It spreads requests exactly evenly and ignores load, caches and sessions, so one long prompt delays
//! those whose turn comes next on the same worker.

use sluice_policy_sdk::settings::NoSettings;
use sluice_policy_sdk::{Facts, Policy, Verdict, export, pick};

/// Prefill workers take turns, and so do the decode workers that each can hand its KV blocks to.
#[derive(Debug)]
pub struct RoundRobin;

impl Policy for RoundRobin {
    fn configure(settings: &str) -> Result<Self, String> {
        NoSettings::parse(settings).map(|_| Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        if let Some(prefill) = pick::in_turn(facts.sequence, facts.paired_prefills())
            && let Some(decode) = pick::in_turn(facts.sequence, facts.decodes_for(prefill))
        {
            return Verdict::pull(prefill.row(), decode.row()).because("their turn");
        }
        match pick::in_turn(facts.sequence, facts.alone()) {
            Some(worker) => Verdict::unified(worker.row()).because("its turn"),
            // Nobody can serve. The host knows why, and words that for the client; a policy would guess.
            None => Verdict::UseDefault,
        }
    }
}

export!(RoundRobin);

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_policy_sdk::testing::{FactsBuilder, WorkerSpec, decode, prefill, try_policy, unified};

    fn verdicts(facts: FactsBuilder, turns: u64) -> Vec<Verdict> {
        (0..turns).map(|turn| RoundRobin.route(&facts.clone().sequence(turn).build())).collect()
    }

    #[test]
    fn each_takes_its_turn() {
        let pairs =
            FactsBuilder::new().worker(prefill(1)).worker(prefill(2)).worker(decode(3)).worker(decode(4));
        let three = pairs.clone().worker(decode(5));
        let alone = FactsBuilder::new().worker(unified(1)).worker(unified(2));
        let cases = [
            (pairs, vec![(0, Some(2)), (1, Some(3)), (0, Some(2))]),
            (three, vec![(0, Some(2)), (1, Some(3)), (0, Some(4)), (1, Some(2))]),
            (alone, vec![(0, None), (1, None), (0, None)]),
        ];
        for (facts, expected) in cases {
            let expected: Vec<_> = expected
                .into_iter()
                .map(|turn| match turn {
                    (prefill, Some(decode)) => Verdict::pull(prefill, decode).because("their turn"),
                    (worker, None) => Verdict::unified(worker).because("its turn"),
                })
                .collect();
            assert_eq!(verdicts(facts, expected.len() as u64), expected);
        }
    }

    #[test]
    fn a_prefill_worker_pairs_within_its_group_only() {
        let facts = FactsBuilder::new()
            .worker(WorkerSpec { group: 1, ..prefill(1) })
            .worker(WorkerSpec { group: 2, ..prefill(2) })
            .worker(WorkerSpec { group: 2, ..decode(3) });
        assert!(
            verdicts(facts, 2).iter().all(|verdict| *verdict == Verdict::pull(1, 2).because("their turn"))
        );
    }

    #[test]
    fn a_host_would_take_it() {
        assert_eq!(try_policy::<RoundRobin>("{}"), Ok(()));
    }

    #[test]
    fn nobody_to_serve_is_the_hosts_to_say() {
        let lonely_prefill = FactsBuilder::new().worker(prefill(1));
        assert_eq!(verdicts(lonely_prefill, 1), [Verdict::UseDefault]);
    }

    #[test]
    fn has_no_settings() {
        assert!(RoundRobin::configure("{}").is_ok());
        let refused = RoundRobin::configure(r#"{"weight": 2}"#).expect_err("no such key");
        assert!(refused.contains("`weight`"), "{refused}");
    }
}
