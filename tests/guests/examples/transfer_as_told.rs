//! Well-behaved: KV moves as the request's label `x-transfer` says: `push`, `pull`, or `late` for a decode worker that is
//! chosen once the prefill is done. However short a prompt is, but for `push-long`.

use sluice_policy_sdk::{Facts, Policy, Verdict, Worker, export, pick};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let load = |worker: Worker<'_>| (worker.running() + worker.waiting()) as f32;
        let Some((prefill, decode)) = pick::pair(facts, load, load) else { return Verdict::UseDefault };
        let verdict = match told(facts) {
            Some("push-long") => return Verdict::push(prefill.row(), decode.row()).recompute_below(64),
            Some("push") => Verdict::push(prefill.row(), decode.row()),
            Some("late") => Verdict::pull_late(prefill.row()),
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
