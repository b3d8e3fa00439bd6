//! Refuses its settings with a message of 50 KB on many lines.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Err("no\n".repeat(17_000))
    }

    fn route(&self, facts: &Facts) -> Verdict {
        sluice_guests::first(facts)
    }
}

export!(Guest);
