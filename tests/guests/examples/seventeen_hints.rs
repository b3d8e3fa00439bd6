//! Gives one hint too many.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        (0..17).fold(sluice_guests::first(facts), |verdict, _| verdict.hint("", ""))
    }
}

export!(Guest);
