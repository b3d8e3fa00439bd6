//! Well-behaved: KV moves as the request's label `x-transfer` says, or else the setting `transfer`: `push`, `pull`, or `late` for a decode worker that is
//! chosen once the prefill is done. However short a prompt is, but for `push-long`.

use sluice_policy_sdk::{Facts, Policy, Verdict, Worker, export, pick};

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
        let load = |worker: Worker<'_>| (worker.running() + worker.waiting()) as f32;
        let Some((prefill, decode)) = pick::pair(facts, load, load) else { return Verdict::UseDefault };
        let verdict = match told(facts).unwrap_or(&self.transfer) {
            "push-long" => return Verdict::push(prefill.row(), decode.row()).recompute_below(64),
            "push" => Verdict::push(prefill.row(), decode.row()),
            "late" => Verdict::pull_late(prefill.row()),
            _ => Verdict::pull(prefill.row(), decode.row()),
        };
        verdict.recompute_below(0)
    }
}

fn told(facts: &Facts) -> Option<&str> {
    let label = facts.request.labels.iter().find(|(name, _)| name == "x-transfer");
    label.map(|(_, how)| how.as_str())
}

export!(Guest);
