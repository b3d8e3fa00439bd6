//! Remembers the seeds it has seen, and answers otherwise for the fiftieth that is new to it: the same question twice
//! is no new one.

use std::cell::RefCell;
use std::collections::BTreeSet;

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest {
    seeds: RefCell<BTreeSet<u64>>,
}

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self { seeds: RefCell::new(BTreeSet::new()) })
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let mut seeds = self.seeds.borrow_mut();
        if seeds.insert(facts.seed) && seeds.len() == 50 {
            Verdict::UseDefault
        } else {
            sluice_guests::first(facts)
        }
    }
}

export!(Guest);
