//! Rejects with a message that no client would read.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, _facts: &Facts) -> Verdict {
        Verdict::reject(429, "x".repeat(1_025))
    }
}

export!(Guest);
