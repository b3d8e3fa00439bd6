//! Well-behaved, and its reason says what it sees of the session.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let seen = match &facts.session {
            None => "no session".to_owned(),
            Some(session) => format!("turn {}", session.turn),
        };
        sluice_guests::first(facts).because(seen)
    }
}

export!(Guest);
