//! Never ends `describe`.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn settings_schema() -> String {
        sluice_guests::forever()
    }

    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        sluice_guests::first(facts)
    }
}

export!(Guest);
