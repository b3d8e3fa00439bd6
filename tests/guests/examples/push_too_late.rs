//! Pushes KV blocks before anybody is chosen to take them.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        match facts.paired_prefills().next() {
            Some(prefill) => sluice_guests::push_late(prefill.row()),
            None => Verdict::UseDefault,
        }
    }
}

export!(Guest);
