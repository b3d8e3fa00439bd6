//! Well-behaved: the first prefill worker, and the host chooses the decode worker once the prefill is done.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        match facts.paired_prefills().next() {
            Some(prefill) => Verdict::pull_late(prefill.row()),
            None => Verdict::UseDefault,
        }
    }
}

export!(Guest);
