//! Never ends `route`.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, _facts: &Facts) -> Verdict {
        sluice_guests::forever()
    }
}

export!(Guest);
