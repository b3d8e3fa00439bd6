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
        if let Some((prefill, decode)) = pick::pair(facts, requests, requests) {
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
    use sluice_policy_sdk::testing::{
        FactsBuilder, WorkerSpec, assert_routes, decode, prefill, try_policy, unified,
    };

    #[test]
    fn picks_the_workers_that_serve_the_fewest() {
        let pairs = FactsBuilder::new()
            .worker(WorkerSpec { running: 3, ..prefill(1) })
            .worker(prefill(2))
            .worker(decode(3))
            .worker(WorkerSpec { running: 1, ..decode(4) });
        let alone = FactsBuilder::new().worker(WorkerSpec { running: 1, ..unified(1) }).worker(unified(2));
        let because = "fewest requests";
        assert_routes(
            &Hello,
            [
                ("two workers where there are pairs", pairs, Verdict::pull(1, 2).because(because)),
                ("one where there are none", alone, Verdict::unified(1).because(because)),
                ("nobody at all", FactsBuilder::new(), Verdict::UseDefault),
            ],
        );
    }

    /// Answers that can be acted on, and the same ones when asked again: what the host will ask for too.
    #[test]
    fn a_host_would_take_it() {
        assert_eq!(try_policy::<Hello>("{}"), Ok(()));
    }
}
