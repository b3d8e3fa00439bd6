//! Never ends `retain`.

use sluice_policy_sdk::{Facts, Policy, Retention, TurnEnd, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        sluice_guests::first(facts)
    }

    fn retain(&self, _turn: &TurnEnd) -> Retention {
        sluice_guests::forever()
    }
}

export!(Guest);
