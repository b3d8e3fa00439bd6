//! Pairs workers whose KV layouts differ, where there are some.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let pair = facts.prefills().find_map(|prefill| {
            let stranger = facts.decodes().find(|decode| decode.group() != prefill.group())?;
            Some(Verdict::pull(prefill.row(), stranger.row()))
        });
        pair.unwrap_or_else(|| sluice_guests::first(facts))
    }
}

export!(Guest);
