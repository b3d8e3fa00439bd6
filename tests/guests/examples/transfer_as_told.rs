//! Well-behaved: KV moves as the request's label `x-transfer` says ([`sluice_guests::as_told`]). However short a prompt is,
//! but for `push-long`.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let threshold_tokens =
            if sluice_guests::label(facts, "x-transfer") == Some("push-long") { 64 } else { 0 };
        sluice_guests::as_told(facts).recompute_below(threshold_tokens)
    }
}

export!(Guest);
