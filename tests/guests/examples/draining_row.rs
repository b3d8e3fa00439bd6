//! Decodes on a worker that drains, where there is one.

use sluice_policy_sdk::{Ability, Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let draining = facts.workers().find(|worker| worker.can(Ability::Draining));
        match (facts.paired_prefills().next(), draining) {
            (Some(prefill), Some(decode)) => Verdict::pull(prefill.row(), decode.row()),
            _ => sluice_guests::first(facts),
        }
    }
}

export!(Guest);
