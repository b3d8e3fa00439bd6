//! Processes that die, stop, come back, and lose their connections.

use sluice_transfer::protocol::Event;

use crate::flight::{Flight, What};
use crate::job::Stage;
use crate::node::{Life, Node};
use crate::stepping::nth;
use crate::world::World;

impl World {
    pub fn crash(&mut self, at: usize) {
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

    pub fn restart(&mut self, at: usize) {
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

    pub fn lose(&mut self, at: usize, pick: u16) {
        let known: Vec<_> = self.nodes[at].endpoints.keys().copied().collect();
        if let Some(peer) = nth(&known, pick) {
            let alive = self.nodes[self.node_of(peer)].is_alive_as(peer);
            let gone = self.setting.same_host && !alive && pick.is_multiple_of(2);
            if gone {
                self.coverage.note("process gone");
            }
            self.give(at, if gone { Event::ProcessGone(peer) } else { Event::PeerLost(peer) });
        }
    }
}
