//! Recurses in `route` until the stack is used up.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        Verdict::unified(sluice_guests::deeper(facts.seed as u32))
    }
}

export!(Guest);
