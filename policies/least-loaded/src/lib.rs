//! Each request to the workers that have the fewest requests.
//!
//! # When to use it
//! When requests differ in length but prompts rarely repeat: it evens out queues without needing any measured
//! figure. It ignores caches and sessions, and counts a long prompt like a short one.

use sluice_policy_sdk::{Facts, Policy, Verdict, Worker, export, pick, settings};

settings! {
    /// How load is counted.
    pub struct Settings {
        /// How many running requests one waiting request counts as: running ones share a batch, while a
        /// waiting one says that the batch is full.
        waiting_weight: u32 = 4, 0..=1_000;
    }
}

/// Fewest requests first; equal loads are drawn evenly, and the same for a conversation.
#[derive(Debug)]
pub struct LeastLoaded {
    settings: Settings,
}

/// Share of failed legs above which a worker is chosen only when there is no other.
const FAILING: f32 = 0.5;

/// More requests than any queue holds.
const FAILING_WEIGHT: f32 = 1e6;

impl LeastLoaded {
    fn load(&self, worker: Worker<'_>) -> f32 {
        // A worker that fails fast always looks idle.
        let failing = if worker.failure_rate() > FAILING { FAILING_WEIGHT } else { 0.0 };
        worker.running() as f32 + self.settings.waiting_weight as f32 * worker.waiting() as f32 + failing
    }
}

impl Policy for LeastLoaded {
    fn settings_schema() -> String {
        Settings::schema()
    }

    fn configure(settings: &str) -> Result<Self, String> {
        Settings::parse(settings).map(|settings| Self { settings })
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let load = |worker: Worker<'_>| self.load(worker);
        if let Some((prefill, decode)) = pick::pair(facts, load, load) {
            return Verdict::pull(prefill.row(), decode.row()).because("least loaded");
        }
        match pick::least(facts.seed, facts.alone(), load) {
            Some(worker) => Verdict::unified(worker.row()).because("least loaded"),
            // Nobody can serve. The host knows why, and words that for the client; a policy would guess.
            None => Verdict::UseDefault,
        }
    }
}

export!(LeastLoaded);

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_policy_sdk::testing::{
        FactsBuilder, WorkerSpec, assert_even, decode, prefill, try_policy, unified,
    };

    fn verdict(settings: &str, facts: FactsBuilder) -> Verdict {
        LeastLoaded::configure(settings).expect("valid settings").route(&facts.build())
    }

    #[test]
    fn picks_the_fewest_requests() {
        let pairs = FactsBuilder::new()
            .worker(WorkerSpec { running: 3, ..prefill(1) })
            .worker(WorkerSpec { running: 2, ..prefill(2) })
            .worker(WorkerSpec { running: 5, ..decode(3) })
            .worker(WorkerSpec { running: 6, ..decode(4) });
        assert_eq!(verdict("{}", pairs), Verdict::pull(1, 2).because("least loaded"));
    }

    #[test]
    fn waiting_requests_count_by_their_weight() {
        let facts = FactsBuilder::new()
            .worker(WorkerSpec { running: 1, waiting: 1, ..unified(1) })
            .worker(WorkerSpec { running: 4, ..unified(2) });
        for (settings, row) in [("{}", 1), (r#"{"waiting_weight": 1}"#, 0), (r#"{"waiting_weight": 0}"#, 0)] {
            assert_eq!(
                verdict(settings, facts.clone()),
                Verdict::unified(row).because("least loaded"),
                "{settings}"
            );
        }
    }

    #[test]
    fn equal_loads_spread_evenly_over_conversations() {
        let alone = (1..=3).fold(FactsBuilder::new(), |facts, id| facts.worker(unified(id)));
        let pairs =
            (1..=3).fold(alone.clone(), |facts, id| facts.worker(prefill(10 + id)).worker(decode(20 + id)));
        for (facts, kinds) in [(alone, 3), (pairs, 9)] {
            assert_even(kinds, 9_000, |seed| format!("{:?}", verdict("{}", facts.clone().seed(seed))));
        }
    }

    #[test]
    fn a_host_would_take_it() {
        assert_eq!(try_policy::<LeastLoaded>("{}"), Ok(()));
    }

    #[test]
    fn nobody_to_serve_is_the_hosts_to_say() {
        assert_eq!(verdict("{}", FactsBuilder::new()), Verdict::UseDefault);
    }

    #[test]
    fn a_worker_that_fails_is_the_last_choice() {
        let policy = LeastLoaded::configure("{}").expect("no settings");
        let failing = WorkerSpec { failure_rate: 0.9, ..unified(1) };
        let busy = WorkerSpec { running: 50, waiting: 50, ..unified(2) };
        let both = FactsBuilder::new().worker(failing.clone()).worker(busy).build();
        assert_eq!(policy.route(&both), Verdict::unified(1).because("least loaded"));
        let alone = FactsBuilder::new().worker(failing).build();
        assert_eq!(policy.route(&alone), Verdict::unified(0).because("least loaded"));
    }

    #[test]
    fn settings_are_checked_by_name() {
        let refused = LeastLoaded::configure(r#"{"waiting_weight": -1}"#).expect_err("out of range");
        assert_eq!(refused, "setting `waiting_weight` is -1; it takes a whole number from 0 to 1000");
        assert!(LeastLoaded::settings_schema().contains(r#""maximum":1000"#));
    }
}
