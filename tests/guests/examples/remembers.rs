//! Answers otherwise when its last answer was about another request: only the order of questions shows it.

use std::cell::Cell;

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest {
    last_seed: Cell<u64>,
}

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self { last_seed: Cell::new(0) })
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let last_seed = self.last_seed.replace(facts.seed);
        sluice_guests::first(facts).because(format!("after {}", last_seed % 7))
    }
}

export!(Guest);
