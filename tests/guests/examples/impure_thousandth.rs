//! Counts its calls of `route`, and answers otherwise from the thousandth on: no trial asks so often.

use std::cell::Cell;

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest {
    calls: Cell<u32>,
}

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self { calls: Cell::new(0) })
    }

    fn route(&self, facts: &Facts) -> Verdict {
        self.calls.set(self.calls.get().saturating_add(1));
        if self.calls.get() >= 1_000 { Verdict::UseDefault } else { sluice_guests::first(facts) }
    }
}

export!(Guest);
