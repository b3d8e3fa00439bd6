//! Routes to a row that no table has.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, _facts: &Facts) -> Verdict {
        Verdict::unified(9_999)
    }
}

export!(Guest);
