//! The shell of a simulated process: events in, actions done.

use sluice_transfer::protocol::{
    Action, Attempt, Body, End, Event, Key, Lease, Message, Outcome, Peer, Place as Freed, Reason, Verb, wire,
};

use crate::coverage::Phases;
use crate::flaw::Flaw;
use crate::flight::{Flight, What};
use crate::job::Stage;
use crate::memory::Owner;
use crate::node::Life;
use crate::world::{Envelope, HoldFate, World};

impl World {
    /// Tells a process something, if it can hear.
    pub fn give(&mut self, at: usize, event: Event) {
        match self.nodes[at].life {
            Life::Dead => {}
            Life::Stopped => self.nodes[at].inbox.push_back(event),
            Life::Running => {
                let events = match self.flaw {
                    Some(flaw) => flaw.bend(event, &self.nodes[at]),
                    None => vec![event],
                };
                for event in events {
                    let out = self.handle(at, event);
                    self.act_all(at, out);
                }
            }
        }
    }

    /// Lets the owner decide, under the eyes of the checks.
    pub fn handle(&mut self, at: usize, event: Event) -> Vec<Action> {
        self.log(|| format!("node {at} <- {event:?}"));
        let watched = self.watch(at, &event);
        let registers =
            matches!(&event, Event::Message { message: Message::Transfer(_, Body::Register(_)), .. });
        let node = &mut self.nodes[at];
        let before = Phases::of(&node.owner);
        let mut out = Vec::new();
        node.owner.handle(event, self.now_ms, &node.memory, &mut out);
        before.note_changes(&Phases::of(&node.owner), &mut self.coverage);
        if registers && out.is_empty() {
            self.coverage.note("registration met by silence");
        }
        self.check_watched(at, watched, &out);
        out
    }

    pub fn act_all(&mut self, at: usize, out: Vec<Action>) {
        for action in out {
            self.log(|| format!("node {at} -> {action:?}"));
            self.act(at, action);
        }
    }

    fn act(&mut self, at: usize, action: Action) {
        match action {
            Action::Send { to, message } => self.send(at, to, message),
            Action::Post(post) => {
                let what = if post.verb == Verb::Read { What::Read } else { What::Write };
                self.post(at, what, post);
            }
            Action::CopyOut(post) => self.post(at, What::CopyOut, post),
            Action::CancelPosts(attempt) => {
                let own = self.nodes[at].peer;
                let of = |f: &&mut Flight| f.poster == own && f.post.op.attempt == attempt;
                self.flights.iter_mut().filter(of).for_each(|flight| flight.cancelled = true);
            }
            Action::CloseEndpoint(peer) => self.close_later(at, peer),
            Action::Arrived { attempt, rect } => self.check_arrived(at, attempt, rect),
            Action::Completed(attempt) => self.completed(at, attempt),
            Action::Failed { attempt, .. } => {
                if self.told_end(at, attempt).is_some() && self.is_part(attempt) {
                    self.coverage.note("a part given up");
                }
            }
            Action::Quarantined { blocks, .. } => {
                self.coverage.note("blocks quarantined");
                if self.flaw == Some(Flaw::FreedTooEarly) {
                    self.nodes[at].memory.give_back_all(&blocks);
                }
            }
            Action::Freed { place, blocks } => {
                if place == Freed::Staging {
                    self.coverage.note("staging slots freed");
                }
                let own = self.nodes[at].peer;
                let is_stolen = |of: Peer, hold: &HoldFate| of == own && hold.stolen && hold.blocks == blocks;
                let stolen = self.holds.iter().any(|((_, of), hold)| is_stolen(*of, hold));
                for block in blocks.iter() {
                    let given = self.nodes[at].memory.give_back(*block);
                    if !given && !stolen && self.flaw.is_none() {
                        self.violate("T3", format!("node {at}: {block:?} was freed twice"));
                    }
                }
            }
            Action::HoldEnded { id, end } => {
                let fate = self.holds.get_mut(&(id, self.nodes[at].peer));
                let ends = fate.map_or(0, |fate| {
                    fate.ends += 1;
                    fate.ends
                });
                if ends != 1 {
                    self.violate("T3", format!("node {at}: hold {id:?} ended again ({end:?})"));
                }
                self.check_lease_over(at, id, end);
                for job in self.jobs.iter_mut().filter(|job| job.id == id) {
                    let producer = job.spec.producers.iter().position(|node| *node == at);
                    producer.into_iter().for_each(|producer| job.stages[producer] = Stage::Over);
                }
            }
            Action::LeaseLeft { left_ms, .. } => {
                self.coverage.note(if left_ms > 0 { "lease renewed" } else { "lease not renewed" });
            }
        }
    }

    fn send(&mut self, at: usize, to: Peer, message: Message) {
        let from = self.nodes[at].peer;
        if let Message::Hold(id, Lease::Left { left_ms: left_ms @ 1.. }) = &message {
            self.lease_told(at, *id, *left_ms);
        }
        if let Message::Transfer(attempt, body) = &message {
            match body {
                Body::Ended(End::Unsure(_)) => self.coverage.note("an end that vouches for nothing"),
                Body::Ended(End::Aborted(Reason::Superseded)) => {
                    self.coverage.note("an old registration refused")
                }
                Body::Confirmed { number, held: true } => self.check_confirmed(at, *attempt, *number),
                Body::Confirmed { .. } => self.coverage.note("confirmation refused"),
                Body::Confirm { number, .. } if self.flaw == Some(Flaw::ReadNotConfirmed) => {
                    let body = Body::Confirmed { number: *number, held: true };
                    let message = Message::Transfer(*attempt, body);
                    return self.give(at, Event::Message { from: to, message });
                }
                _ => {}
            }
        }
        let mut bytes = Vec::new();
        wire::encode(&message, &mut bytes);
        self.wire.push(Envelope { from, to, bytes, sent_ms: self.now_ms });
    }

    /// The endpoint of a process for a peer, opened when there is none.
    pub fn endpoint(&mut self, at: usize, peer: Peer) -> Key {
        self.keys += 1;
        *self.nodes[at].endpoints.entry(peer).or_insert(Key(self.keys))
    }

    fn close_later(&mut self, at: usize, peer: Peer) {
        if self.flaw == Some(Flaw::DeadlineEndsQuarantine) {
            if let Some(key) = self.nodes[at].endpoints.get(&peer).copied() {
                self.give(at, Event::EndpointClosed { peer, key });
            }
            return;
        }
        self.closings.insert((at, peer));
    }

    /// Closes an endpoint: what its peer sent by it lands no more, what this process posted by it is cut off. What of
    /// that has left for the peer may land there all the same.
    pub fn close(&mut self, at: usize, peer: Peer) {
        let Some(key) = self.nodes[at].endpoints.remove(&peer) else { return };
        self.coverage.note("endpoint closed");
        let own = self.nodes[at].peer;
        let mine = |f: &Flight| f.poster == own && f.post.peer == peer;
        self.flights.retain(|f| !(mine(f) && f.what == What::Read));
        self.flights.iter_mut().filter(|f| mine(f) && f.what == What::Write).for_each(Flight::orphan);
        self.flights.retain(|f| !f.words.is_empty() || !f.mute);
        self.give(at, Event::EndpointClosed { peer, key });
    }

    fn completed(&mut self, at: usize, attempt: Attempt) {
        let Some(job) = self.told_end(at, attempt) else { return };
        self.check_completed(at, attempt);
        if self.is_part(attempt) {
            let verb = self.jobs[job].spec.verb;
            self.coverage.note(if verb == Verb::Read {
                "a part brought by READ"
            } else {
                "a part brought by WRITE"
            });
        }
        let blocks = self.landings[&attempt].blocks.clone();
        for block in blocks.iter() {
            self.nodes[at].memory.set_owner(*block, Owner::Request);
            self.nodes[at].memory.keep(*block);
        }
        self.jobs[job].completed = true;
        self.jobs[job].got = Some(blocks);
    }

    fn is_part(&self, attempt: Attempt) -> bool {
        let landing = &self.landings[&attempt];
        landing.asked.wanted != self.jobs[landing.job].spec.grid.whole()
    }

    /// The consumer's engine has its answer, and may have only one. Returns the job.
    fn told_end(&mut self, at: usize, attempt: Attempt) -> Option<usize> {
        let landing = self.landings.get_mut(&attempt)?;
        let (again, job) = (std::mem::replace(&mut landing.told, true), landing.job);
        if again {
            self.violate("T3", format!("node {at}: {attempt} ended twice for its engine"));
        }
        if self.jobs[job].open == Some(attempt) {
            self.jobs[job].open = None;
        }
        Some(job)
    }

    /// Takes an operation's end to whoever posted it.
    pub fn report(&mut self, flight: &Flight, outcome: Outcome) {
        if flight.mute || self.nodes[flight.node].peer != flight.poster {
            return;
        }
        let op = flight.post.op;
        let event =
            if flight.what == What::CopyOut { Event::Copied(op) } else { Event::Posted { op, outcome } };
        self.give(flight.node, event);
    }
}
