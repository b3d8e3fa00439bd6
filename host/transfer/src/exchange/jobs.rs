//! Operations that the machines have posted, on their way through the fabric in parts. Pure: no fabric, no time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::metrics::Flow;
use super::work::Work;
use crate::fabric::{PeerId, Ticket};
use crate::layout::Pair;
use crate::protocol::{Attempt, Key, Op, Outcome, Peer};

/// Whose operation.
pub(super) type JobId = (Peer, Op);

/// One operation. It is over when nothing is left of it and none of its parts is in the fabric.
#[derive(Debug)]
pub(super) struct Job {
    pub flow: Flow,
    /// By which endpoint, and as which of the fabric's peers.
    pub key: Key,
    pub fabric_peer: PeerId,
    pub pair: Arc<Pair>,
    pub work: Work,
    /// Parts in the fabric.
    pub under_way: u32,
    pub failed: bool,
}

/// All of them, in turns: a long operation delays a short one by a part.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    jobs: BTreeMap<JobId, Job>,
    turns: VecDeque<JobId>,
    tickets: BTreeMap<Ticket, (JobId, u64)>,
    /// Tickets ever given.
    given: u64,
}

/// An operation that is over: nothing of it lands any more.
#[derive(Debug)]
pub(super) struct Over {
    pub id: JobId,
    pub outcome: Outcome,
    pub flow: Flow,
}

/// A part that has ended.
#[derive(Debug)]
pub(super) struct PartEnd {
    pub id: JobId,
    pub flow: Flow,
    pub bytes: u64,
    /// The operation, if it is over with that.
    pub over: Option<Over>,
}

impl Jobs {
    pub fn add(&mut self, id: JobId, job: Job) {
        self.turns.push_back(id);
        self.jobs.insert(id, job);
    }

    /// The next operation that has something left; it loses its turn.
    pub fn next(&mut self) -> Option<(JobId, &mut Job)> {
        while let Some(id) = self.turns.pop_front() {
            if self.jobs.get(&id).is_some_and(|job| !job.work.left.is_empty()) {
                return self.jobs.get_mut(&id).map(|job| (id, job));
            }
        }
        None
    }

    /// A number for the next post.
    pub fn ticket(&mut self) -> Ticket {
        self.given += 1;
        Ticket(self.given)
    }

    /// A part of so many bytes is in the fabric; the operation has another turn if something is left.
    pub fn posted(&mut self, id: JobId, ticket: Ticket, bytes: u64) {
        self.tickets.insert(ticket, (id, bytes));
        if let Some(job) = self.jobs.get_mut(&id) {
            job.under_way += 1;
            if !job.work.left.is_empty() {
                self.turns.push_back(id);
            }
        }
    }

    /// It could not be posted now: the same turn again.
    pub fn keep_turn(&mut self, id: JobId) {
        self.turns.push_front(id);
    }

    /// A part has ended, and nothing of it lands any more.
    pub fn ended(&mut self, ticket: Ticket, well: bool) -> Option<PartEnd> {
        let (id, bytes) = self.tickets.remove(&ticket)?;
        let job = self.jobs.get_mut(&id)?;
        job.under_way -= 1;
        if !well {
            job.fail();
        }
        let flow = job.flow;
        Some(PartEnd { id, flow, bytes, over: self.over(id) })
    }

    /// A part has failed in a way that may let it land later. It counts as under way until its endpoint is closed:
    /// returns between whom that is.
    pub fn lingers(&mut self, ticket: Ticket) -> Option<Flow> {
        let (id, _) = self.tickets.get(&ticket)?;
        let job = self.jobs.get_mut(id)?;
        job.fail();
        Some(job.flow)
    }

    /// Nothing more of it is to be posted.
    pub fn fail(&mut self, id: JobId) -> Option<Over> {
        self.jobs.get_mut(&id)?.fail();
        self.over(id)
    }

    /// Nothing more of an attempt is to be posted by this engine.
    pub fn cancel(&mut self, poster: Peer, attempt: Attempt) -> Vec<Over> {
        let op = |number| (poster, Op { attempt, number });
        let ids: Vec<_> = self.jobs.range(op(0)..=op(u32::MAX)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.fail(id)).collect()
    }

    /// An endpoint is closed: all that went by it is over.
    pub fn closed(&mut self, key: Key) -> Vec<Over> {
        self.tickets.retain(|_, (id, _)| self.jobs.get(id).is_some_and(|job| job.key != key));
        let gone = self.jobs.extract_if(.., |_, job| job.key == key);
        gone.map(|(id, job)| Over { id, outcome: Outcome::Failed, flow: job.flow }).collect()
    }

    pub fn get_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.jobs.get_mut(&id)
    }

    /// Whether some have a turn.
    pub fn have_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Parts in the fabric.
    pub fn under_way(&self) -> usize {
        self.tickets.len()
    }

    fn over(&mut self, id: JobId) -> Option<Over> {
        let is_over = |job: &Job| job.under_way == 0 && job.work.left.is_empty();
        self.jobs.get(&id).filter(|job| is_over(job))?;
        let job = self.jobs.remove(&id)?;
        let outcome = if job.failed { Outcome::Failed } else { Outcome::Done };
        Some(Over { id, outcome, flow: job.flow })
    }
}

impl Job {
    fn fail(&mut self) {
        self.failed = true;
        self.work.left.clear();
    }
}
