//! The quiet after a schedule: no more faults, and everything comes to its end.

use sluice_transfer::protocol::{Event, Peer};

use crate::job::Stage;
use crate::node::Life;
use crate::world::{NODES, World};

/// Rounds in which a world of this size must have come to rest. It takes a few hundred.
const MAX_ROUNDS: usize = 20_000;

impl World {
    /// Lets all that is under way arrive, and time pass, until nothing is due any more.
    pub fn settle(&mut self) {
        for at in 0..NODES {
            self.resume(at);
        }
        for _ in 0..MAX_ROUNDS {
            if self.violation.is_some() {
                return;
            }
            if !self.settle_once() {
                return self.check_settled();
            }
            self.check();
        }
        self.violate("live", format!("no rest after {MAX_ROUNDS} rounds"));
    }

    fn settle_once(&mut self) -> bool {
        if !self.wire.is_empty() {
            self.deliver(0);
        } else if let Some(at) = self.flights.iter().position(|f| f.held_up_until_ms <= self.now_ms) {
            self.fly(at, 3);
        } else if let Some((at, peer)) = self.closings.pop_first() {
            self.close(at, peer);
        } else if let Some((at, peer)) = self.untold_death() {
            self.give(at, Event::PeerLost(peer));
            self.closings.insert((at, peer));
        } else {
            return self.pass_time();
        }
        true
    }

    fn untold_death(&self) -> Option<(usize, Peer)> {
        let running =
            (0..NODES).filter(|at| self.setting.deaths_told && self.nodes[*at].life == Life::Running);
        let mut known = running.flat_map(|at| self.nodes[at].endpoints.keys().map(move |peer| (at, *peer)));
        known.find(|(_, peer)| !self.nodes[self.node_of(*peer)].is_alive_as(*peer))
    }

    fn pass_time(&mut self) -> bool {
        let running = (0..NODES).filter(|at| self.nodes[*at].life == Life::Running);
        let next = running.filter_map(|at| self.nodes[at].owner.next_due_ms().map(|due| (due, at))).min();
        let held_up = self.flights.iter().map(|flight| flight.held_up_until_ms).min();
        if let Some(until_ms) = held_up.filter(|until| next.is_none_or(|(due_ms, _)| *until <= due_ms)) {
            self.now_ms = self.now_ms.max(until_ms);
            return true;
        }
        let Some((due_ms, at)) = next else { return false };
        self.now_ms = self.now_ms.max(due_ms);
        self.tick(at);
        true
    }

    /// Without faults, and with engines that do their part, every transfer is completed and every hold delivered.
    pub fn finish(&mut self) {
        for _ in 0..MAX_ROUNDS {
            let idle = self.jobs.iter().all(|job| {
                job.completed
                    || (job.open.is_some()
                        && job.stages.iter().all(|s| matches!(s, Stage::Filled | Stage::Over)))
            });
            if idle {
                break;
            }
            for at in 0..self.jobs.len() {
                self.retire(at as u16);
                self.receive(at);
                for producer in 0..self.jobs[at].stages.len() {
                    self.produce((producer * self.jobs.len() + at) as u16, 1);
                }
            }
            // Blocks may be short until others have ended.
            while self.violation.is_none() && (!self.wire.is_empty() || !self.flights.is_empty()) {
                self.settle_once();
            }
            for at in 0..NODES {
                self.bystander(at, 0);
            }
            self.check();
            if self.violation.is_some() {
                return;
            }
        }
        self.settle();
        for at in 0..self.jobs.len() {
            if !self.jobs[at].completed && self.violation.is_none() {
                self.violate("live", format!("job {at} was not completed, and nothing was in its way"));
            }
        }
    }
}
