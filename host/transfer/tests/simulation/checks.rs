//! T1 to T6, checked after every step on real bytes.

use sluice_transfer::protocol::{
    Action, Attempt, BlockRef, Body, Event, Message, Rect, Sink, Source, Transfers, Verb,
};

use crate::flight::{Flight, What, Word};
use crate::memory::{Owner, Place};
use crate::node::Life;
use crate::world::{HoldFate, Landing, World};

/// What an event of an old epoch must leave as it is.
pub struct Watched {
    attempt: Attempt,
    sinks: Vec<Sink>,
    sources: Vec<Source>,
}

fn later_than<T: Clone>(
    attempt: Attempt,
    all: &std::collections::BTreeMap<Attempt, T>,
) -> impl Iterator<Item = &T> {
    all.iter().filter(move |(key, _)| key.id == attempt.id && key.epoch > attempt.epoch).map(|(_, own)| own)
}

impl World {
    /// T1 and T5, and that deadlines end.
    pub fn check(&mut self) {
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            if let Some(block) = node.memory.spoilt() {
                let owner = node.memory.blocks[block].owner;
                return self
                    .violate("T1", format!("node {at}: bytes of block {block} ({owner:?}) were spoilt"));
            }
            let owner = &node.owner;
            let limits = self.setting.limits;
            let (closed, consumed) = owner.remembered();
            let fits = owner.holds().len() <= limits.holds
                && owner.sources().len() <= limits.sources
                && owner.sinks().len() <= limits.sinks
                && closed <= limits.closed
                && consumed <= limits.closed;
            if !fits {
                return self.violate("T5", format!("node {at}: more is open than may be"));
            }
        }
    }

    /// T1, where a word lands: its block must still be what it was posted for.
    pub fn check_landing(&mut self, flight: &Flight, word: &Word) {
        let owner = self.nodes[flight.target].memory.owner(word.to.block);
        let attempt = flight.post.op.attempt;
        if owner != Owner::Landing(attempt) && self.flaw.is_none() {
            let block = word.to.block;
            self.violate(
                "T1",
                format!("a late {:?} of {attempt} landed in {block:?} of {owner:?}", flight.what),
            );
        }
        let told = self.landings.get(&attempt).is_some_and(|landing| landing.told);
        if flight.what == What::Write && told {
            self.coverage.note("write landed in quarantine");
        }
        if !self.nodes[flight.node].is_alive_as(flight.poster) {
            self.coverage.note("write landed after its process died");
        }
    }

    /// What a WRITE takes must still be held, by the same token.
    pub fn check_taking(&mut self, flight: &Flight, word: &Word) {
        let owner = self.nodes[flight.node].memory.owner(word.from.block);
        if flight.what == What::Write && owner != Owner::Hold(flight.post.op.attempt.id) {
            let block = word.from.block;
            self.violate("T1", format!("{:?} reads from {block:?}, which went to {owner:?}", flight.post.op));
        }
    }

    /// T2 and T6: what the engine is told is in place, byte for byte, and for READs vouched for.
    pub fn check_arrived(&mut self, at: usize, attempt: Attempt, rect: Rect) {
        let Some(landing) = self.landings.get(&attempt) else { return };
        let job = &self.jobs[landing.job];
        if !rect.is_within(landing.asked.wanted) {
            return self
                .violate("T2", format!("node {at}: {attempt} was told {rect:?}, which it never wanted"));
        }
        let mut wrong = None;
        let cells =
            (rect.first..rect.end).flat_map(|p| (rect.first_layer..rect.end_layer).map(move |l| (p, l)));
        for (position, layer) in cells {
            let block = landing.blocks[(position - landing.asked.named.start) as usize];
            for shard in 0..crate::memory::SHARDS {
                let place = Place { block, layer: layer.into(), shard };
                if self.nodes[at].memory.read(place) != job.word(position, layer, shard) {
                    wrong = Some(("T2", place));
                }
            }
            let vouched = |link| {
                self.reads.range((attempt, 0)..=(attempt, u32::MAX)).any(|(_, read)| {
                    let cell =
                        Rect { first: position, end: position + 1, first_layer: layer, end_layer: layer + 1 };
                    read.link == link && read.confirmed && read.rect.intersection(cell).is_some()
                })
            };
            if job.spec.verb == Verb::Read && !job.links().into_iter().all(vouched) {
                let place = Place { block, layer: layer.into(), shard: 0 };
                wrong = wrong.or(Some(("T6", place)));
            }
        }
        if let Some((rule, place)) = wrong {
            self.violate(rule, format!("node {at}: {attempt} was told {rect:?}, but {place:?} is not so"));
        }
    }

    pub fn check_completed(&mut self, at: usize, attempt: Attempt) {
        let wanted = self.landings[&attempt].asked.wanted;
        self.check_arrived(at, attempt, wanted);
    }

    /// T6, at the holder: it vouches only for blocks that it still holds, of reads that were over.
    pub fn check_confirmed(&mut self, at: usize, attempt: Attempt, number: u32) {
        let node = &self.nodes[at];
        let owns = |block: &BlockRef| node.memory.owner(*block) == Owner::Hold(attempt.id);
        let held = self.holds.get(&(attempt.id, node.peer)).is_some_and(|hold| hold.blocks.iter().all(owns));
        let ended = node.owner.holds().get(&attempt.id).is_some_and(|hold| hold.end().is_some());
        if !held {
            self.violate("T6", format!("node {at} vouched for blocks of {attempt} that it does not hold"));
        }
        if ended {
            self.coverage.note("confirmed within the grace");
        }
        if let Some(read) = self.reads.get_mut(&(attempt, number)) {
            read.confirmed |= read.done;
        }
    }

    /// Before an event: what it must not touch.
    pub fn watch(&self, at: usize, event: &Event) -> Option<Watched> {
        let Event::Message { message: Message::Transfer(attempt, _), .. } = event else { return None };
        let owner = &self.nodes[at].owner;
        let (sinks, sources) = later(owner, *attempt);
        (!sinks.is_empty() || !sources.is_empty()).then_some(Watched { attempt: *attempt, sinks, sources })
    }

    /// T4, after it.
    pub fn check_watched(&mut self, at: usize, watched: Option<Watched>, out: &[Action]) {
        let Some(Watched { attempt, sinks, sources }) = watched else { return };
        self.coverage.note("message of an old epoch");
        let touched = out.iter().any(|action| match action {
            Action::Send { message: Message::Transfer(of, body), .. } => {
                of.id == attempt.id && of.epoch > attempt.epoch && !matches!(body, Body::Accepted)
            }
            Action::Arrived { attempt: of, .. }
            | Action::Completed(of)
            | Action::Failed { attempt: of, .. } => of.id == attempt.id && of.epoch > attempt.epoch,
            Action::Post(post) => post.op.attempt.id == attempt.id && post.op.attempt.epoch > attempt.epoch,
            _ => false,
        });
        if touched || later(&self.nodes[at].owner, attempt) != (sinks, sources) {
            self.violate("T4", format!("node {at}: a message of {attempt} changed a later epoch"));
        }
    }

    /// A process that has just been told the time has nothing open past its deadline.
    pub fn check_deadlines(&mut self, at: usize) {
        let node = &self.nodes[at];
        let overdue = |of: &Landing| of.peer == node.peer && !of.told && of.deadline_ms <= self.now_ms;
        if let Some((attempt, _)) = self.landings.iter().find(|(_, landing)| overdue(landing)) {
            let what = format!("node {at}: the deadline of {attempt} has passed and its engine waits");
            return self.violate("T5", what);
        }
        let outlived =
            |hold: &HoldFate| hold.ends == 0 && hold.until_ms.is_some_and(|until| until <= self.now_ms);
        if let Some((id, _)) = self.holds.iter().find(|((_, of), hold)| *of == node.peer && outlived(hold)) {
            let what = format!("node {at}: the lease of {id:?} is over and it has not ended");
            return self.violate("T3", what);
        }
        if node.owner.next_due_ms().is_some_and(|due| due <= self.now_ms) {
            self.violate("T5", format!("node {at}: something is due and was not done"));
        }
    }

    /// T4 again: a message that comes a second time changes nothing and causes nothing but words.
    pub fn check_replay(&mut self, at: usize, event: Event) {
        let before = self.nodes[at].owner.clone();
        let out = self.handle(at, event);
        self.coverage.note("message replayed");
        let words = out.iter().all(|action| matches!(action, Action::Send { .. } | Action::LeaseLeft { .. }));
        if !words || before != self.nodes[at].owner {
            self.violate("T4", format!("node {at}: a replayed message had an effect: {out:?}"));
        }
        self.act_all(at, out);
    }

    /// In the end nothing is open, and every block is with nobody or with a request.
    pub fn check_settled(&mut self) {
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            if node.life != Life::Running {
                continue;
            }
            let owner = &node.owner;
            let open = owner.holds().len() + owner.sources().len() + owner.sinks().len();
            let leaked: Vec<_> = node.memory.out().collect();
            if open > 0 || !leaked.is_empty() {
                let what = format!("node {at}: {open} still open, blocks still out: {leaked:?}");
                return self.violate("live", what);
            }
            let peer = node.peer;
            if let Some((id, _)) = self.holds.iter().find(|((_, of), hold)| *of == peer && hold.ends != 1) {
                let what = format!("node {at}: {id:?} has not ended once");
                return self.violate("T3", what);
            }
        }
        let untold = self.landings.iter().find(|(_, l)| !l.told && self.nodes[l.node].is_alive_as(l.peer));
        if let Some((attempt, _)) = untold {
            let what = format!("the engine was never told how {attempt} ended");
            self.violate("live", what);
        }
    }
}

fn later(owner: &Transfers, attempt: Attempt) -> (Vec<Sink>, Vec<Source>) {
    let sinks = later_than(attempt, owner.sinks()).cloned().collect();
    (sinks, later_than(attempt, owner.sources()).cloned().collect())
}
