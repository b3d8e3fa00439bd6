//! Operations of the machines into posts of the fabric.

use std::collections::BTreeMap;

use super::engine::Engine;
use super::jobs::{Job, JobId, PartEnd};
use super::stepping::Exchange;
use super::work::Work;
use crate::fabric::{self, PostError, RegionId, Ticket};
use crate::layout::{ByteCopy, RankLink};
use crate::protocol::{Event, HoldPhase, Link, Outcome, Peer, Post, Rect, Verb};

/// Memory of ended posts that is kept for later ones: as many posts as copy threads can be busy with.
const MAX_SPARE: usize = 8;

impl Exchange {
    /// Takes an operation on, or says that it was never posted.
    pub(super) fn begin(&mut self, poster: Peer, post: &Post) {
        match self.job(poster, post) {
            Some(job) => {
                self.shared.figures().flow(job.flow).queued += 1;
                self.moving.entry(job.flow).or_insert(self.now_ms);
                self.jobs.add((poster, post.op), job);
            }
            None => {
                self.shared.figures().posts_refused += 1;
                let (op, outcome) = (post.op, Outcome::Failed);
                self.inbox.push_back((poster, Event::Posted { op, outcome }));
            }
        }
    }

    /// What an operation is in bytes, if both sides still have what it is between, and mean the same by it.
    fn job(&self, poster: Peer, post: &Post) -> Option<Job> {
        let endpoint = self.endpoints.usable(poster, post.peer, post.key)?;
        let (source, sink) = match post.verb {
            Verb::Write => (poster, post.peer),
            Verb::Read => (post.peer, poster),
        };
        let (extent, from) = self.engines.get(&source)?.holds.get(&post.op.attempt.id)?;
        let receiving = self.engines.get(&sink)?.sinks.get(&post.op.attempt)?;
        if receiving.extent != *extent || receiving.from != source || receiving.verb != post.verb {
            return None;
        }
        let pair = endpoint.pair(source).clone();
        let link = pair.links().iter().find(|link| is_between(link, post.link)).copied()?;
        let (from, to) = (from.clone(), receiving.place.clone());
        let work = Work { extent: *extent, link, source: from, sink: to, left: vec![post.rect] };
        Some(Job {
            flow: receiving.flow(sink),
            key: post.key,
            fabric_peer: endpoint.posts_of(poster),
            pair,
            work,
            under_way: 0,
            failed: false,
        })
    }

    /// Posts what is waiting, in turns, until the fabric has no more room.
    pub(super) fn post(&mut self) {
        while !self.full
            && let Some((id, job)) = self.jobs.next()
        {
            match job.work.plan_next(&job.pair, &mut self.plan) {
                Ok(Some(rect)) => self.post_planned(id, rect),
                // Nothing was left: `next` gives no turn for that.
                Ok(None) => {}
                Err(_) => self.refused(id),
            }
        }
    }

    fn post_planned(&mut self, id: JobId, rect: Rect) {
        let ticket = self.jobs.ticket();
        let mut copies = self.spare.pop().unwrap_or_default();
        copies.extend(self.plan.copies());
        let (bytes, runs, runs_before) = (self.plan.bytes(), self.plan.runs(), self.plan.runs_before());
        let Some(job) = self.jobs.get_mut(id) else { return };
        let (local, remote) = regions(&job.work.link, job.flow.verb);
        let (flow, verb, peer) = (job.flow, job.flow.verb, job.fabric_peer);
        let post = fabric::Post { peer, ticket, verb, local, remote, copies, runs_before };
        match self.fabric.post(post) {
            Ok(()) => {
                self.jobs.posted(id, ticket, bytes);
                let mut figures = self.shared.figures();
                let figures = figures.flow(flow);
                (figures.runs, figures.runs_before) =
                    (figures.runs + runs, figures.runs_before + runs_before);
            }
            Err(refused) if matches!(refused.cause, PostError::Full { .. }) => {
                job.work.left.push(rect);
                self.jobs.keep_turn(id);
                self.keep(refused.post.copies);
                self.full = true;
            }
            Err(_) => self.refused(id),
        }
    }

    /// No plan, or no such memory: nothing of this part has moved.
    fn refused(&mut self, id: JobId) {
        self.shared.figures().posts_refused += 1;
        if let Some(over) = self.jobs.fail(id) {
            self.over(&over);
        }
    }

    /// A part is over, and nothing of it lands any more.
    pub(super) fn part_ended(&mut self, ticket: Ticket, well: bool) {
        let Some(PartEnd { id, flow, bytes, over }) = self.jobs.ended(ticket, well) else { return };
        if well {
            let filling = is_filling(&self.engines, flow.source, id);
            let mut figures = self.shared.figures();
            let figures = figures.flow(flow);
            figures.bytes += bytes;
            figures.bytes_while_filling += if filling { bytes } else { 0 };
        }
        if let Some(over) = over {
            self.over(&over);
        }
    }

    /// Keeps a post's memory for the next one.
    pub(super) fn keep(&mut self, mut copies: Vec<ByteCopy>) {
        if self.spare.len() < MAX_SPARE {
            copies.clear();
            self.spare.push(copies);
        }
    }
}

fn is_filling(engines: &BTreeMap<Peer, Engine>, source: Peer, (_, op): JobId) -> bool {
    let hold = engines.get(&source).and_then(|engine| engine.transfers.holds().get(&op.attempt.id));
    hold.is_some_and(|hold| hold.phase() == HoldPhase::Filling)
}

fn is_between(link: &RankLink, ranks: Link) -> bool {
    (link.source_rank, link.sink_rank) == (u32::from(ranks.from.0), u32::from(ranks.to.0))
}

/// The poster's slab and the other's, each by its rank.
fn regions(link: &RankLink, verb: Verb) -> (RegionId, RegionId) {
    match verb {
        Verb::Write => (RegionId(link.source_rank), RegionId(link.sink_rank)),
        Verb::Read => (RegionId(link.sink_rank), RegionId(link.source_rank)),
    }
}
