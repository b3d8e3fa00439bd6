//! The producer's side of one attempt.
//!
//! Here: what it is, and how it ends. [`moving`] posts, offers and reports.

mod moving;

use std::collections::BTreeMap;

use super::event::{Action, Generations, Outcome};
use super::hold::Hold;
use super::limits::{FENCE_PATIENCE_MS, MAX_WAIT_MS};
use super::message::{Body, End, Message, Registration};
use super::names::Reason;
use super::names::Rect;
use super::names::{Attempt, Peer, Rank, Verb};
use super::region::Region;

/// The producer's machine. See the table in [`super`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    attempt: Attempt,
    consumer: Peer,
    asked: Registration,
    phase: SourcePhase,
    links: Vec<Progress>,
    announced: BTreeMap<Rank, Region>,
    ops: BTreeMap<u32, (usize, Rect)>,
    next_op: u32,
    unsure: bool,
    due_ms: u64,
}

/// Where a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePhase {
    /// Registered; nothing is ready yet.
    Waiting,
    /// Blocks were offered, or writes posted.
    Moving,
    /// Given up, writes still under way.
    Draining(Reason),
    /// The reader has all.
    Read,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Progress {
    posted: Region,
    done: Region,
}

impl Source {
    /// A registration has come.
    #[must_use]
    pub fn new(attempt: Attempt, consumer: Peer, asked: Registration, now_ms: u64) -> Self {
        let links = vec![Progress::default(); asked.links.len()];
        let announced = asked.links.iter().map(|link| (link.from, Region::default())).collect();
        let due_ms = now_ms + asked.left_ms.min(MAX_WAIT_MS);
        let phase = SourcePhase::Waiting;
        let (ops, next_op, unsure) = (BTreeMap::new(), 0, false);
        Self { attempt, consumer, asked, phase, links, announced, ops, next_op, unsure, due_ms }
    }

    /// Who registered.
    #[must_use]
    pub fn consumer(&self) -> Peer {
        self.consumer
    }

    /// Where it is.
    #[must_use]
    pub fn phase(&self) -> SourcePhase {
        self.phase
    }

    /// When it wants to be looked at again.
    #[must_use]
    pub fn due_ms(&self) -> u64 {
        self.due_ms
    }

    /// Whether writes of ours still read from the held blocks.
    #[must_use]
    pub fn pins(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Whether a peer may be reading from the held blocks.
    #[must_use]
    pub fn is_read_from(&self) -> bool {
        self.asked.verb == Verb::Read && self.phase == SourcePhase::Moving
    }

    /// How it ended, once nothing is under way.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        let cells = self.asked.wanted.cells();
        let total = cells * self.links.len() as u64;
        match self.phase {
            SourcePhase::Read => Some(End::Complete { cells: total }),
            SourcePhase::Draining(reason) if self.ops.is_empty() && self.unsure => Some(End::Unsure(reason)),
            SourcePhase::Draining(reason) if self.ops.is_empty() => Some(End::Aborted(reason)),
            SourcePhase::Moving if self.asked.verb == Verb::Write => self
                .links
                .iter()
                .all(|link| link.done.cells() == cells)
                .then_some(End::Complete { cells: total }),
            SourcePhase::Waiting | SourcePhase::Moving | SourcePhase::Draining(_) => None,
        }
    }

    /// A write of ours is over. An unknown number was settled by closing the endpoint.
    pub fn posted(&mut self, number: u32, outcome: Outcome, now_ms: u64, out: &mut Vec<Action>) {
        let Some((at, rect)) = self.ops.remove(&number) else { return };
        match (outcome, self.phase) {
            (_, SourcePhase::Draining(_)) => {}
            (Outcome::Failed, _) => self.abort(Reason::Fabric, now_ms, out),
            (Outcome::Done, _) => {
                let link = self.asked.links[at];
                self.say(Body::Written { link, rect }, out);
                if self.links[at].done.insert(rect).is_err() {
                    self.abort(Reason::BadReport, now_ms, out);
                }
            }
        }
    }

    /// Answers whether what was read was still what had been offered, now that the read is over.
    pub fn confirm(
        &self,
        (number, rect): (u32, Rect),
        hold: Option<&Hold>,
        generations: &impl Generations,
        out: &mut Vec<Action>,
    ) {
        let held = self.is_read_from()
            && rect.is_within(self.asked.wanted)
            && hold.is_some_and(|hold| hold.spec().blocks.iter().all(|block| generations.is_current(*block)));
        self.say(Body::Confirmed { number, held }, out);
    }

    /// The reader has all, confirmed.
    pub fn read(&mut self) {
        if self.is_read_from() {
            self.phase = SourcePhase::Read;
        }
    }

    /// Gives up: nothing more is posted, and what is under way is waited for.
    pub fn abort(&mut self, reason: Reason, now_ms: u64, out: &mut Vec<Action>) {
        if !matches!(self.phase, SourcePhase::Waiting | SourcePhase::Moving) {
            return;
        }
        self.phase = SourcePhase::Draining(reason);
        self.due_ms = now_ms + FENCE_PATIENCE_MS;
        if self.pins() {
            out.push(Action::CancelPosts(self.attempt));
        }
    }

    /// The consumer is out of reach.
    pub fn peer_lost(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.abort(Reason::PeerLost, now_ms, out);
        if self.pins() {
            out.push(Action::CloseEndpoint(self.consumer));
        }
    }

    /// Our endpoint for the consumer is closed: no write reads from our blocks any more, but what was sent may land.
    pub fn endpoint_closed(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.abort(Reason::EndpointClosed, now_ms, out);
        self.unsure |= self.pins();
        self.ops.clear();
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        if self.due_ms > now_ms {
            return;
        }
        match self.phase {
            SourcePhase::Draining(_) => {
                out.push(Action::CloseEndpoint(self.consumer));
                self.due_ms = now_ms + FENCE_PATIENCE_MS;
            }
            _ => self.abort(Reason::TooSlow, now_ms, out),
        }
    }

    fn say(&self, body: Body, out: &mut Vec<Action>) {
        out.push(Action::Send { to: self.consumer, message: Message::Transfer(self.attempt, body) });
    }
}
