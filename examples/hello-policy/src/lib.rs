//! The smallest policy: every request to the workers that serve the fewest.

use sluice_policy_sdk::settings::NoSettings;
use sluice_policy_sdk::{Facts, Policy, Verdict, Worker, export, pick};

/// Sends each request to the workers that serve the fewest.
pub struct Hello;

impl Policy for Hello {
    fn configure(settings: &str) -> Result<Self, String> {
        NoSettings::parse(settings)?;
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let requests = |worker: Worker| worker.running() as f32;
        if let Some(prefill) = pick::least(facts.seed, facts.paired_prefills(), requests)
            && let Some(decode) = pick::least(facts.seed, facts.decodes_for(prefill), requests)
        {
            return Verdict::pull(prefill.row(), decode.row()).because("fewest requests");
        }
        match pick::least(facts.seed, facts.alone(), requests) {
            Some(worker) => Verdict::unified(worker.row()).because("fewest requests"),
            None => Verdict::UseDefault,
        }
    }
}

export!(Hello);

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_policy_sdk::testing::{FactsBuilder, WorkerSpec, decode, prefill};

    #[test]
    fn picks_the_workers_that_serve_the_fewest() {
        let facts = FactsBuilder::new()
            .worker(WorkerSpec { running: 3, ..prefill(1) })
            .worker(prefill(2))
            .worker(decode(3))
            .worker(WorkerSpec { running: 1, ..decode(4) })
            .build();
        let verdict = Hello::configure("{}").expect("no settings").route(&facts);
        assert_eq!(verdict, Verdict::pull(1, 2).because("fewest requests"));
    }
}
