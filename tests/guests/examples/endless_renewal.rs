//! Renews each lease for 49 days.

use sluice_policy_sdk::{Facts, Lease, Policy, Renewal, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        sluice_guests::first(facts)
    }

    fn heartbeat(&self, _lease: &Lease) -> Renewal {
        Renewal::Renew(u32::MAX)
    }
}

export!(Guest);
