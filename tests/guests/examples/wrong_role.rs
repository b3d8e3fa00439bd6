//! Prefills on a worker that only decodes.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        match facts.decodes().next() {
            Some(decode) => Verdict::pull(decode.row(), decode.row()),
            None => sluice_guests::first(facts),
        }
    }
}

export!(Guest);
