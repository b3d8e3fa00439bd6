//! Well-behaved: KV moves as the request's label `x-transfer` says, or else the setting `transfer`
//! ([`sluice_guests::as_told`]). However short a prompt is, but for `push-long`.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

sluice_policy_sdk::settings! {
    /// What it can be told.
    struct Settings {
        /// How KV moves of requests that do not say.
        transfer: String = "pull".to_owned();
    }
}

struct Guest {
    transfer: String,
}

impl Policy for Guest {
    fn settings_schema() -> String {
        Settings::schema()
    }

    fn configure(settings: &str) -> Result<Self, String> {
        Settings::parse(settings).map(|settings| Self { transfer: settings.transfer })
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let how = sluice_guests::label(facts, "x-transfer").unwrap_or(&self.transfer);
        sluice_guests::as_told(facts, how).recompute_below(if how == "push-long" { 64 } else { 0 })
    }
}

export!(Guest);
