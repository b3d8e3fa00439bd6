//! Never ends `configure`.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        sluice_guests::forever()
    }

    fn route(&self, facts: &Facts) -> Verdict {
        sluice_guests::first(facts)
    }
}

export!(Guest);
