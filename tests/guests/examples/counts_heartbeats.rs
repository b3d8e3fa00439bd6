//! Renews for a time that grows with each heartbeat it was ever asked for.

use std::cell::Cell;

use sluice_policy_sdk::{Facts, Lease, Policy, Renewal, Verdict, export};

struct Guest {
    heartbeats: Cell<u32>,
}

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self { heartbeats: Cell::new(0) })
    }

    fn route(&self, facts: &Facts) -> Verdict {
        sluice_guests::first(facts)
    }

    fn heartbeat(&self, _lease: &Lease) -> Renewal {
        self.heartbeats.set(self.heartbeats.get() + 1);
        Renewal::Renew(1_000 * self.heartbeats.get())
    }
}

export!(Guest);
