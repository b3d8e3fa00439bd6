//! Draining a worker: it gets no new legs, what it has runs to its end, and it is said when it may be stopped.
//!
//! A prefill worker that has no request may still have KV blocks that decode workers are to read, so it is safe to
//! stop only when no handle to them is live.

use std::time::Duration;

use sluice_core::facts::Role;
use sluice_core::health::State;

use super::{Pool, Worker};

/// What the host's own part of a decision takes at most, besides the policy's calls: microseconds, and more where the
/// host is short of CPU.
const DECIDING_BESIDES_POLICY: Duration = Duration::from_millis(500);

/// Calls of a policy between a look at the fleet and the booking that follows from it: `route`, or `bind-decode`; a call
/// that keeps its thread from one that waits for it counts once more.
const CALLS_PER_DECISION: u32 = 2;

/// How long decisions begun before an order to drain may still send work: the look at the fleet, the policy's call and the
/// booking are one step without a wait.
pub(super) fn decisions_end_within(wall_bound_ms: u32) -> Duration {
    Duration::from_millis(wall_bound_ms.into()) * CALLS_PER_DECISION + DECIDING_BESIDES_POLICY
}

/// How far a worker's draining is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draining {
    /// Whether it was told to drain.
    pub asked: bool,
    /// Live handles to KV blocks on it.
    pub handles: u32,
    /// Whether stopping it costs no request.
    pub safe_to_stop: bool,
}

impl Pool {
    /// Lets a worker drain. Telling it twice changes nothing.
    pub fn drain(&self, worker: &Worker) {
        let now = self.now();
        worker.seen().draining_since.get_or_insert(now);
        self.publish();
    }

    /// Lets a worker take work again.
    pub fn undrain(&self, worker: &Worker) {
        worker.seen().draining_since = None;
        self.publish();
    }

    /// How far a worker's draining is.
    pub fn draining(&self, worker: &Worker) -> Draining {
        let now = self.now();
        let asked_since = worker.seen().draining_since;
        let is_decided =
            asked_since.is_some_and(|since| now.saturating_sub(since) >= self.decisions_end_within);
        let (requests, handles) = (worker.booked().requests, worker.live_handles(now));
        Draining {
            asked: asked_since.is_some(),
            handles,
            safe_to_stop: is_decided && requests == 0 && handles == 0,
        }
    }

    /// Why no request can be served now, worker states alone; `None` when they do not say.
    pub fn missing(&self) -> Option<String> {
        let workers: Vec<_> = self.workers.iter().map(|worker| Standing::of(worker)).collect();
        let needed: &[Role] = match self.config.mode {
            _ if workers.iter().any(|worker| worker.role == Role::Unified && worker.takes_work()) => {
                return None;
            }
            crate::config::PoolMode::Unified => &[Role::Unified],
            crate::config::PoolMode::Pull
            | crate::config::PoolMode::Bidirectional
            | crate::config::PoolMode::HostManaged => &[Role::Prefill, Role::Decode],
        };
        missing_roles(needed, &workers)
    }
}

/// A worker, as far as it decides whether its pool serves.
#[derive(Debug, Clone, Copy)]
struct Standing {
    role: Role,
    is_up: bool,
    drains: bool,
}

impl Standing {
    fn of(worker: &Worker) -> Self {
        let seen = worker.seen();
        Self {
            role: worker.role,
            is_up: seen.health.state == State::Up,
            drains: seen.draining_since.is_some(),
        }
    }

    fn takes_work(self) -> bool {
        self.is_up && !self.drains
    }
}

fn missing_roles(needed: &[Role], workers: &[Standing]) -> Option<String> {
    let of = |role: Role| workers.iter().filter(move |worker| worker.role == role);
    let missing: Vec<Role> =
        needed.iter().copied().filter(|role| !of(*role).any(|worker| worker.takes_work())).collect();
    if missing.is_empty() {
        return None;
    }
    let some_up = |role: &Role| of(*role).any(|worker| worker.is_up);
    if missing.len() == needed.len() && !missing.iter().any(some_up) {
        return Some("no worker is up".to_owned());
    }
    let told = |role: &Role| match some_up(role) {
        true => format!("every {} worker that is up is draining", role.name()),
        false => format!("no {} worker is up", role.name()),
    };
    Some(missing.iter().map(told).collect::<Vec<_>>().join(", and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_may_take_longer_is_waited_for_longer() {
        let within_ms = [100, 10_000].map(|wall_bound_ms| decisions_end_within(wall_bound_ms).as_millis());
        assert_eq!(within_ms, [700, 20_500]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let worker = |role, is_up, drains| Standing { role, is_up, drains };
        let (prefill, decode) =
            (|up, drains| worker(Role::Prefill, up, drains), |up, drains| worker(Role::Decode, up, drains));
        for (workers, expected) in [
            (vec![prefill(true, false), decode(true, false)], None),
            (vec![prefill(false, false), decode(true, false)], Some("no prefill worker is up")),
            (vec![prefill(false, false), decode(false, true)], Some("no worker is up")),
            (
                vec![prefill(true, false), decode(true, true), decode(false, false)],
                Some("every decode worker that is up is draining"),
            ),
            (
                vec![prefill(true, true), decode(false, false)],
                Some("every prefill worker that is up is draining, and no decode worker is up"),
            ),
        ] {
            let missing = missing_roles(&[Role::Prefill, Role::Decode], &workers);
            assert_eq!(missing.as_deref(), expected, "{workers:?}");
        }
    }
}
