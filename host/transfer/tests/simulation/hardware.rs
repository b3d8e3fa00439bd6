//! What hardware does with the operations that it has taken.

use sluice_transfer::protocol::{Outcome, Post};

use crate::flaw::Flaw;
use crate::flight::{Flight, What};
use crate::job::Asked;
use crate::node::{Life, Node};
use crate::random::mix;
use crate::world::{ReadFate, World};

impl World {
    /// Takes an operation on.
    pub fn post(&mut self, at: usize, what: What, post: Post) {
        let poster = self.nodes[at].peer;
        let target = if what == What::Write { self.node_of(post.peer) } else { at };
        let attempt = post.op.attempt;
        let Some(job) = self.jobs.iter().find(|job| job.id == attempt.id) else { return };
        let Asked { wanted, named } = &self.landings[&attempt].asked;
        let mistaken = self.flaw == Some(Flaw::AnyPartCounts) && what == What::Write;
        if !mistaken && !post.rect.is_within(*wanted) {
            return self.violate("T1", format!("node {at}: {post:?} goes beyond {wanted:?}"));
        }
        let firsts = match what {
            What::CopyOut => (named.start, named.start),
            What::Write if mistaken => (0, 0),
            What::Read | What::Write => (0, named.start),
        };
        let words = Flight::words(&post, job.shards(post.link), firsts);
        if what == What::Read {
            let fate = ReadFate { link: post.link, rect: post.rect, done: false, confirmed: false };
            self.reads.insert((attempt, post.op.number), fate);
        }
        if what == What::Write {
            self.endpoint(at, post.peer);
        }
        let (cancelled, begun, mute, held_up_until_ms) = (false, false, false, 0);
        self.flights.push(Flight {
            what,
            post,
            node: at,
            poster,
            target,
            words,
            cancelled,
            begun,
            mute,
            held_up_until_ms,
        });
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
}
