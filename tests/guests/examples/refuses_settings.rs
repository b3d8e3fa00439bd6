//! Refuses all settings.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Err("setting `mood` is wrong; it takes nothing".to_owned())
    }

    fn route(&self, facts: &Facts) -> Verdict {
        sluice_guests::first(facts)
    }
}

export!(Guest);
