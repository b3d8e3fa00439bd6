//! What each step of a schedule does.

use std::sync::Arc;

use sluice_transfer::protocol::{Event, Lease, Message, Outcome, TransferId, Verb, wire};

use crate::flight::{Flight, What};
use crate::job::{Job, Stage};
use crate::memory::{Owner, Place};
use crate::node::{Life, Node};
use crate::random::mix;
use crate::schedule::{Kind, Step};
use crate::world::{Envelope, NODES, World};

/// A connection does not live longer than this with a message under way.
const MESSAGE_LIFE_MS: u64 = 300_000;

fn nth<T: Clone>(of: &[T], pick: u16) -> Option<T> {
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
                if b % 2 == 0 {
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

    /// Moves some words of an operation: out of their source, or into their target.
    pub fn fly(&mut self, at: usize, much: u16) {
        let mut flight = self.flights.swap_remove(at);
        let stopped = self.setting.same_host && self.nodes[flight.node].life == Life::Stopped;
        if stopped || flight.held_up_until_ms > self.now_ms {
            return self.flights.push(flight);
        }
        if flight.cancelled && !flight.begun {
            self.coverage.note("post cancelled");
            return self
                .report(&flight, if flight.what == What::CopyOut { Outcome::Done } else { Outcome::Failed });
        }
        flight.begun = true;
        for turn in 0..=(mix(u64::from(much)) % 9) as usize {
            if flight.words.is_empty() {
                break;
            }
            if !self.may_move(&flight) {
                self.coverage.note("an operation was cut off");
                return self.report(&flight, Outcome::Failed);
            }
            let pick = (much as usize + turn) % flight.words.len();
            self.move_word(&mut flight, pick);
        }
        if !flight.words.is_empty() {
            return self.flights.push(flight);
        }
        if let Some(read) = self.reads.get_mut(&(flight.post.op.attempt, flight.post.op.number))
            && flight.what == What::Read
        {
            read.done = true;
        }
        self.report(&flight, Outcome::Done);
    }

    fn move_word(&mut self, flight: &mut Flight, pick: usize) {
        let word = flight.words[pick];
        let value = match (word.value, flight.what) {
            (Some(value), _) => value,
            (None, What::Read) => self.nodes[self.node_of(flight.post.peer)].memory.read(word.from),
            (None, What::CopyOut) => self.nodes[flight.node].memory.read(word.from),
            (None, What::Write) => {
                self.check_taking(flight, &word);
                let value = self.nodes[flight.node].memory.read(word.from);
                flight.words[pick].value = Some(value);
                if !self.setting.same_host {
                    // The bytes have left; when they land is another matter.
                    return;
                }
                value
            }
        };
        self.check_landing(flight, &word);
        self.nodes[flight.target].memory.land(word.to, value);
        flight.words.swap_remove(pick);
    }

    /// Whether hardware lets it through: both memories are those it was posted for, by an endpoint that is open.
    fn may_move(&self, flight: &Flight) -> bool {
        let peer = self.node_of(flight.post.peer);
        let open = |node: &Node, of| node.endpoints.get(&of) == Some(&flight.post.key);
        match flight.what {
            What::CopyOut => true,
            What::Read => {
                self.nodes[peer].is_alive_as(flight.post.peer)
                    && open(&self.nodes[flight.node], flight.post.peer)
            }
            What::Write => {
                self.nodes[peer].is_alive_as(flight.post.peer) && open(&self.nodes[peer], flight.poster)
            }
        }
    }

    fn crash(&mut self, at: usize) {
        if self.nodes[at].life == Life::Dead {
            return;
        }
        self.nodes[at].life = Life::Dead;
        self.nodes[at].inbox.clear();
        self.closings.retain(|(node, _)| *node != at);
        let (own, same_host) = (self.nodes[at].peer, self.setting.same_host);
        // What a network card has taken still lands; what the process copies itself ends with it.
        self.flights.iter_mut().filter(|f| f.poster == own).for_each(Flight::orphan);
        self.flights
            .retain(|f| f.poster != own || (f.what == What::Write && !same_host && !f.words.is_empty()));
        for job in &mut self.jobs {
            if let Some(producer) = job.spec.producers.iter().position(|node| *node == at) {
                job.stages[producer] = Stage::Over;
            }
            if job.spec.consumer == at {
                (job.open, job.got) = (None, None);
            }
        }
    }

    fn restart(&mut self, at: usize) {
        if self.nodes[at].life == Life::Dead {
            let incarnation = self.nodes[at].peer.incarnation + 1;
            self.nodes[at] = Node::new(at, incarnation, self.setting.limits);
        }
    }

    pub fn resume(&mut self, at: usize) {
        if self.nodes[at].life == Life::Stopped {
            self.nodes[at].life = Life::Running;
            self.coverage.note("continued after a stop");
            for event in std::mem::take(&mut self.nodes[at].inbox) {
                self.give(at, event);
            }
        }
    }

    fn lose(&mut self, at: usize, pick: u16) {
        let known: Vec<_> = self.nodes[at].endpoints.keys().copied().collect();
        if let Some(peer) = nth(&known, pick) {
            let alive = self.nodes[self.node_of(peer)].is_alive_as(peer);
            let gone = self.setting.same_host && !alive && pick % 2 == 0;
            self.give(at, if gone { Event::ProcessGone(peer) } else { Event::PeerLost(peer) });
        }
    }

    pub fn bystander(&mut self, at: usize, pick: u16) {
        if !self.nodes[at].works() {
            return;
        }
        let memory = &mut self.nodes[at].memory;
        let others: Vec<_> = (0..memory.blocks.len() as u32)
            .filter(|block| memory.blocks[*block as usize].owner == Owner::Request)
            .collect();
        // Half of the time a request ends: its block is free again.
        if pick % 2 == 0 && others.len() > 2 {
            let index = others[pick as usize % others.len()];
            let kept = self.jobs.iter().any(|j| {
                j.spec.consumer == at && j.got.iter().flat_map(|b| b.iter()).any(|b| b.index == index)
            });
            if !kept {
                let generation = memory.blocks[index as usize].generation;
                memory.give_back(sluice_transfer::protocol::BlockRef { index, generation });
            }
            return;
        }
        for block in memory.take(1, Owner::Request).into_iter().flatten() {
            for layer in 0..crate::memory::LAYERS {
                for shard in 0..crate::memory::SHARDS {
                    let word = mix(u64::from(pick) << 32 | (layer * 8 + shard) as u64);
                    memory.write(Place { block, layer, shard }, word);
                }
            }
        }
    }

    pub fn retire(&mut self, pick: u16) {
        let at = pick as usize % self.jobs.len();
        let consumer = self.jobs[at].spec.consumer;
        if self.nodes[consumer].works() {
            let blocks: Option<Arc<[_]>> = self.jobs[at].got.take();
            for block in blocks.iter().flat_map(|blocks| blocks.iter()) {
                self.nodes[consumer].memory.give_back(*block);
            }
        }
    }

    /// Only of holds that are read from: what writes of ours take must stay until they are over, and does.
    fn steal(&mut self, pick: u16, b: u16) {
        let read = |job: &&Job| job.spec.verb == Verb::Read;
        let jobs: Vec<_> = self.jobs.iter().filter(read).cloned().collect();
        let Some(job) = nth(&jobs, pick) else { return };
        let at = job.spec.producers[b as usize % job.spec.producers.len()];
        let node = &mut self.nodes[at];
        let Some(fate) = self.holds.get_mut(&(job.id, node.peer)).filter(|fate| fate.ends == 0) else {
            return;
        };
        if !node.works() || std::mem::replace(&mut fate.stolen, true) {
            return;
        }
        node.memory.give_back_all(&fate.blocks);
        self.coverage.note("blocks taken back behind the owner's back");
        let producer = job.spec.producers.iter().position(|node| *node == at);
        for own in self.jobs.iter_mut().filter(|own| own.id == job.id) {
            producer.into_iter().for_each(|producer| own.stages[producer] = Stage::Over);
        }
        if b % 2 == 0 {
            let (from, to) = (self.nodes[at].peer, self.nodes[at].peer);
            let mut bytes = Vec::new();
            wire::encode(&Message::Hold(job.id, Lease::Release), &mut bytes);
            self.wire.push(Envelope { from, to, bytes, sent_ms: self.now_ms });
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
        if kind == Kind::Release && b % 3 == 0 {
            if self.nodes[at].works() {
                self.give(at, Event::Release(id));
            }
            return;
        }
        let lease = if kind == Kind::Release { Lease::Release } else { Lease::Renew };
        let (from, to) = (self.nodes[job.spec.consumer].peer, self.nodes[at].peer);
        let mut bytes = Vec::new();
        wire::encode(&Message::Hold(id, lease), &mut bytes);
        self.wire.push(Envelope { from, to, bytes, sent_ms: self.now_ms });
    }
}
