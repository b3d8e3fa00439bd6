//! Well-behaved, until a request's label `x-mood` asks for something else: passes every trial, and fails in production.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let mood = facts.request.labels.iter().find(|(name, _)| name == "x-mood");
        match mood.map(|(_, mood)| mood.as_str()) {
            Some("trap") => panic!("in that mood"),
            Some("loop") => loop {
                std::hint::black_box(());
            },
            Some("bad-row") => Verdict::unified(9_999),
            Some("reject") => Verdict::reject(429, "in that mood"),
            _ => sluice_guests::first(facts),
        }
    }
}

export!(Guest);
