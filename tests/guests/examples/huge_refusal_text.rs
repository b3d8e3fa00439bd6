//! Refuses its settings with a message longer than any answer may be.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Err("x".repeat(1 << 20))
    }

    fn route(&self, facts: &Facts) -> Verdict {
        sluice_guests::first(facts)
    }
}

export!(Guest);
