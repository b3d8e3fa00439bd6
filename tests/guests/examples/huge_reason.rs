//! Its reason is longer than a header takes.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        sluice_guests::first(facts).because("x".repeat(257))
    }
}

export!(Guest);
