//! Gives 10,000 hints.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        (0..10_000).fold(sluice_guests::first(facts), |verdict, _| verdict.hint("", ""))
    }
}

export!(Guest);
