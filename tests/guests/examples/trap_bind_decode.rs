//! Traps in `bind-decode`.

use sluice_policy_sdk::{Facts, Policy, Prefilled, Row, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        sluice_guests::first(facts)
    }

    fn bind_decode(&self, _facts: &Facts, _prefilled: &Prefilled) -> Option<Row> {
        panic!("cannot go on")
    }
}

export!(Guest);
