//! What each step of a schedule does.

use sluice_transfer::protocol::{Event, Lease, Message, Outcome, TransferId, wire};

use crate::flight::What;
use crate::node::Life;
use crate::schedule::{Kind, Step};
use crate::world::{Envelope, NODES, World};

/// A connection does not live longer than this with a message under way.
const MESSAGE_LIFE_MS: u64 = 60_000;

pub fn nth<T: Clone>(of: &[T], pick: u16) -> Option<T> {
    (!of.is_empty()).then(|| of[pick as usize % of.len()].clone())
}

impl World {
    pub fn step(&mut self, step: Step) {
        let Step { kind, a, b } = step;
        let node = a as usize % NODES;
        match kind {
            Kind::Produce => self.produce(a, b),
            Kind::Receive => self.receive(a as usize % self.jobs.len()),
            Kind::Retire => self.retire(a),
            Kind::Bystander => self.bystander(node, b),
            Kind::Cancel | Kind::Expect => self.on_landing(kind, a, b),
            Kind::Release | Kind::Renew => self.on_hold(kind, a, b),
            Kind::Deliver | Kind::Duplicate | Kind::Drop if self.wire.is_empty() => {}
            Kind::Deliver => self.deliver(a as usize % self.wire.len()),
            Kind::Duplicate => {
                let again = self.wire[a as usize % self.wire.len()].clone();
                self.wire.push(again);
                if b.is_multiple_of(2) {
                    self.deliver_twice(a as usize % self.wire.len());
                }
            }
            Kind::Drop => drop(self.wire.swap_remove(a as usize % self.wire.len())),
            Kind::Move | Kind::FailOp | Kind::MuteOp | Kind::HoldUp if self.flights.is_empty() => {}
            Kind::Move => self.fly(a as usize % self.flights.len(), b),
            Kind::FailOp => {
                let flight = self.flights.swap_remove(a as usize % self.flights.len());
                if flight.what == What::CopyOut {
                    self.flights.push(flight)
                } else {
                    self.report(&flight, Outcome::Failed)
                }
            }
            Kind::MuteOp => {
                let at = a as usize % self.flights.len();
                self.flights[at].mute |= self.flights[at].what != What::CopyOut;
            }
            Kind::HoldUp => {
                let at = a as usize % self.flights.len();
                self.flights[at].held_up_until_ms = self.now_ms + u64::from(b % 15_000);
            }
            Kind::Close => {
                let open: Vec<_> = self.closings.iter().copied().collect();
                if let Some((at, peer)) =
                    nth(&open, a).filter(|(at, _)| self.nodes[*at].life == Life::Running)
                {
                    self.closings.remove(&(at, peer));
                    self.close(at, peer);
                }
            }
            Kind::Tick => self.tick(node),
            Kind::Advance => self.now_ms += u64::from(b),
            Kind::Crash => self.crash(node),
            Kind::Restart => self.restart(node),
            Kind::Stop => {
                if self.nodes[node].life == Life::Running {
                    self.nodes[node].life = Life::Stopped;
                }
            }
            Kind::Continue => self.resume(node),
            Kind::Lose => self.lose(node, b),
            Kind::Steal => self.steal(a, b),
            Kind::EngineGone => {
                if self.nodes[node].works() {
                    self.nodes[node].engine_gone = true;
                    self.give(node, Event::EngineGone);
                }
            }
        }
    }

    pub fn tick(&mut self, at: usize) {
        if self.nodes[at].life == Life::Running {
            self.give(at, Event::Tick);
            self.check_deadlines(at);
        }
    }

    fn decoded(&self, at: usize) -> Option<(usize, Event)> {
        let envelope = &self.wire[at];
        let to = self.node_of(envelope.to);
        let fresh = self.now_ms - envelope.sent_ms < MESSAGE_LIFE_MS;
        let message = wire::decode(&envelope.bytes).ok()?;
        let alive = self.nodes[to].is_alive_as(envelope.to);
        let misrouted = self.setting.misrouted && self.nodes[to].life != Life::Dead;
        (fresh && (alive || misrouted)).then_some((to, Event::Message { from: envelope.from, message }))
    }

    pub fn deliver(&mut self, at: usize) {
        let decoded = self.decoded(at);
        if wire::decode(&self.wire[at].bytes).is_err() {
            self.violate("T5", "a message was sent that cannot be read".to_owned());
        }
        self.wire.remove(at);
        if let Some((to, event)) = decoded {
            self.give(to, event);
        }
    }

    fn deliver_twice(&mut self, at: usize) {
        let decoded = self.decoded(at);
        self.deliver(at);
        if let Some((to, event)) = decoded
            && self.nodes[to].life == Life::Running
            && self.flaw.is_none()
            && self.violation.is_none()
        {
            self.check_replay(to, event);
        }
    }

    fn on_landing(&mut self, kind: Kind, pick: u16, b: u16) {
        let open: Vec<_> =
            self.jobs.iter().filter_map(|job| job.open.map(|at| (job.spec.consumer, at))).collect();
        if let Some((at, attempt)) = nth(&open, pick).filter(|(at, _)| self.nodes[*at].works()) {
            let within_ms = u64::from(b % 2_000);
            let event = if kind == Kind::Cancel {
                Event::Cancel(attempt)
            } else {
                Event::Expect { attempt, within_ms }
            };
            self.give(at, event);
        }
    }

    fn on_hold(&mut self, kind: Kind, pick: u16, b: u16) {
        let Some(job) = nth(&self.jobs, pick) else { return };
        let (at, id): (usize, TransferId) =
            (job.spec.producers[b as usize % job.spec.producers.len()], job.id);
        if kind == Kind::Release && b.is_multiple_of(3) {
            if self.nodes[at].works() {
                self.give(at, Event::Release(id));
            }
            return;
        }
        if kind == Kind::Renew && b % 4 < 2 {
            // From nothing to twice the hold's own time; what is within its margin is refused.
            return self.renew_for(at, id, job.spec.ttl_ms * u64::from(b / 4 % 17) / 8);
        }
        let lease = if kind == Kind::Release { Lease::Release } else { Lease::Renew };
        let (from, to) = (self.nodes[job.spec.consumer].peer, self.nodes[at].peer);
        let mut bytes = Vec::new();
        wire::encode(&Message::Hold(id, lease), &mut bytes);
        self.wire.push(Envelope { from, to, bytes, sent_ms: self.now_ms });
    }
}
