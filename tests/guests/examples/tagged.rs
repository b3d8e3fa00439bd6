//! Well-behaved, and its reason is what the setting `tag` says: tells which file decided.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

sluice_policy_sdk::settings! {
    /// What it can be told.
    struct Settings {
        /// The reason of every route.
        tag: String = "untagged".to_owned();
    }
}

struct Guest {
    tag: String,
}

impl Policy for Guest {
    fn settings_schema() -> String {
        Settings::schema()
    }

    fn configure(settings: &str) -> Result<Self, String> {
        Settings::parse(settings).map(|settings| Self { tag: settings.tag })
    }

    fn route(&self, facts: &Facts) -> Verdict {
        sluice_guests::first(facts).because(self.tag.as_str())
    }
}

export!(Guest);
