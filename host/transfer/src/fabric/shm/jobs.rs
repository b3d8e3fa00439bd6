//! The posts under way, and whose turn it is. Pure: who copies what next, not the copying.
//!
//! Jobs take turns, a slice each, so a long transfer delays a short one by a slice and not by its length.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::slices::{Cursor, between};
use crate::fabric::endpoint::Checked;
use crate::fabric::{Completion, Failure, PeerCounters, PeerId, Post, Ticket, Verb};
use crate::layout::ByteCopy;
use crate::memory::{OutOfRange, Stores, finish_streams};

/// A post under way.
#[derive(Debug)]
pub(super) struct Job {
    peer: PeerId,
    ticket: Ticket,
    verb: Verb,
    bytes: u64,
    counters: Arc<PeerCounters>,
    work: Arc<Work>,
    /// What is before it was handed out.
    next: Cursor,
    /// Slices that threads are at.
    copying: usize,
    failure: Option<Failure>,
}

/// What threads need of a job.
#[derive(Debug)]
struct Work {
    memory: Checked,
    stores: Stores,
    copies: Vec<ByteCopy>,
}

/// A part of a job, for one thread to do.
#[derive(Debug)]
pub(super) struct Slice {
    job: u64,
    work: Arc<Work>,
    from: Cursor,
    to: Cursor,
}

/// A job that is over.
#[derive(Debug)]
pub(super) struct Ended {
    pub completion: Completion,
    pub bytes: u64,
    pub counters: Arc<PeerCounters>,
}

/// All jobs.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    jobs: HashMap<u64, Job>,
    /// Those with something left to hand out, by turn.
    turns: VecDeque<u64>,
    last: u64,
}

impl Job {
    /// A post that was checked.
    pub fn new(post: Post, memory: Checked, stores: Stores, counters: Arc<PeerCounters>) -> Self {
        let Post { peer, ticket, verb, copies, .. } = post;
        let bytes = memory.bytes;
        let work = Arc::new(Work { memory, stores, copies });
        Self { peer, ticket, verb, bytes, counters, work, next: Cursor::default(), copying: 0, failure: None }
    }

    fn all_handed_out(&self) -> bool {
        self.next.is_end(&self.work.copies)
    }

    fn is_over(&self) -> bool {
        self.copying == 0 && (self.failure.is_some() || self.all_handed_out())
    }

    fn end(self) -> Ended {
        // Every slice was given back, so nobody else has the copies.
        let copies = Arc::into_inner(self.work).map(|work| work.copies).unwrap_or_default();
        let result = self.failure.map_or(Ok(()), Err);
        let completion = Completion { peer: self.peer, ticket: self.ticket, verb: self.verb, result, copies };
        Ended { completion, bytes: self.bytes, counters: self.counters }
    }
}

impl Jobs {
    /// Takes a job. One without copies is over at once.
    pub fn add(&mut self, job: Job) -> Option<Ended> {
        self.last += 1;
        if job.is_over() {
            return Some(job.end());
        }
        self.jobs.insert(self.last, job);
        self.turns.push_back(self.last);
        None
    }

    /// The next slice of the job whose turn it is.
    pub fn hand_out(&mut self) -> Option<Slice> {
        let id = self.turns.pop_front()?;
        let job = self.jobs.get_mut(&id)?;
        let from = job.next;
        job.next = from.slice_end(&job.work.copies);
        job.copying += 1;
        let slice = Slice { job: id, work: Arc::clone(&job.work), from, to: job.next };
        if !job.all_handed_out() {
            self.turns.push_back(id);
        }
        Some(slice)
    }

    /// A slice was done; the job's end if it was the last one out.
    pub fn give_back(&mut self, slice: Slice, copied: Result<(), OutOfRange>) -> Option<Ended> {
        let id = slice.job;
        drop(slice);
        let job = self.jobs.get_mut(&id)?;
        job.copying -= 1;
        if copied.is_err() && job.failure.is_none() {
            job.failure = Some(Failure::Fabric("a copy left its slab"));
            self.turns.retain(|turn| *turn != id);
        }
        let is_over = self.jobs.get(&id).is_some_and(Job::is_over);
        is_over.then(|| self.jobs.remove(&id).map(Job::end)).flatten()
    }

    /// Hands out nothing more of a peer's jobs. Those that no thread is at are over.
    pub fn cut_short(&mut self, peer: PeerId) -> Vec<Ended> {
        for job in self.jobs.values_mut().filter(|job| job.peer == peer && !job.all_handed_out()) {
            job.failure = job.failure.or(Some(Failure::PeerClosed));
        }
        let jobs = &self.jobs;
        self.turns.retain(|id| jobs.get(id).is_some_and(|job| job.failure.is_none()));
        self.jobs.extract_if(|_, job| job.is_over()).map(|(_, job)| job.end()).collect()
    }

    /// Slices of a peer's jobs that threads are at.
    pub fn copying(&self, peer: PeerId) -> usize {
        self.jobs.values().filter(|job| job.peer == peer).map(|job| job.copying).sum()
    }

    /// Whether a thread would get something to do.
    pub fn has_work(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Jobs that are not over.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }
}

impl Slice {
    /// Copies it, all of it visible to whoever is told afterwards.
    pub fn copy(&self) -> Result<(), OutOfRange> {
        let Work { memory, stores, copies } = &*self.work;
        let copied = between(copies, self.from, self.to)
            .try_for_each(|copy| memory.source.copy_to(&memory.sink, copy, *stores));
        finish_streams();
        copied
    }
}
