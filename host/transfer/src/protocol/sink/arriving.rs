//! What is in place, and who may be told so.

use super::super::event::Action;
use super::super::message::{Body, End};
use super::super::names::Reason;
use super::super::names::Rect;
use super::super::names::{Link, Rank, Verb};
use super::{Sink, SinkPhase};

impl Sink {
    /// A producing process has spoken about this attempt.
    pub fn heard(&mut self, feed: usize, body: Body, now_ms: u64, out: &mut Vec<Action>) {
        if !std::mem::replace(&mut self.feeds[feed].heard, true) {
            self.feeds[feed].sends = 0;
        }
        match body {
            Body::Ended(end) => self.ended(feed, end, now_ms, out),
            _ if self.phase != SinkPhase::Open => {}
            Body::Offer { blocks, left_ms } if self.feeds[feed].offer.is_none() => {
                self.feeds[feed].offer = Some(blocks);
                out.push(Action::LeaseLeft { id: self.spec.attempt.id, left_ms });
            }
            Body::Ready { rank, rect } => self.readable(feed, rank, rect, now_ms, out),
            Body::Written { link, rect } => self.written(feed, link, rect, now_ms, out),
            Body::Confirmed { number, held } => self.confirmed(feed, number, held, now_ms, out),
            // What a consumer says is not for a consumer.
            _ => {}
        }
    }

    /// Does what has become possible: reads, copies, and the end.
    pub fn advance(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        if self.phase == SinkPhase::Open {
            self.fetch(now_ms, out);
        }
        if self.phase == SinkPhase::Open && self.is_complete() {
            self.phase = SinkPhase::Closing;
            self.freed.blocks = true;
            out.push(Action::Completed(self.spec.attempt));
            self.feeds.iter_mut().for_each(|feed| (feed.sends, feed.send_at_ms) = (0, now_ms));
            self.resend(now_ms, out);
        }
        self.let_go(out);
    }

    /// Whether every wanted cell of every link is in place, and every writer has said that it posted no more.
    fn is_complete(&self) -> bool {
        let cells = self.spec.wanted.cells();
        let covered = self.links.iter().all(|arrival| arrival.covered.cells() == cells);
        let reported = |end: &Option<End>| matches!(end, Some(End::Complete { .. }));
        covered && (self.spec.verb == Verb::Read || self.feeds.iter().all(|feed| reported(&feed.end)))
    }

    /// A producer's last word. A complete one vouches for all of its links, so lost reports need no repeating.
    fn ended(&mut self, feed: usize, end: End, now_ms: u64, out: &mut Vec<Action>) {
        if self.feeds[feed].end.is_some() {
            return;
        }
        self.feeds[feed].end = Some(end);
        if matches!(end, End::Unsure(_)) && !self.is_fenced(feed) {
            out.push(Action::CloseEndpoint(self.spec.feeds[feed].peer));
        }
        if self.phase != SinkPhase::Open {
            return;
        }
        let wanted = self.spec.wanted;
        let cells = wanted.cells() * self.spec.feeds[feed].links.len() as u64;
        match end {
            End::Complete { cells: declared } if declared == cells && self.spec.verb == Verb::Write => {
                let links = self.spec.feeds[feed].links.clone();
                links.into_iter().for_each(|link| self.written(feed, link, wanted, now_ms, out));
            }
            End::Complete { .. } => self.fail(Reason::BadReport, now_ms, out),
            End::Aborted(reason) | End::Unsure(reason) => self.fail(reason, now_ms, out),
        }
    }

    fn readable(&mut self, feed: usize, rank: Rank, rect: Rect, now_ms: u64, out: &mut Vec<Action>) {
        let sound = rect.is_within(self.spec.wanted) && self.spec.verb == Verb::Read;
        let links = self.links.iter_mut().filter(|own| own.feed == feed && own.link.from == rank);
        let mut taken = links.map(|own| own.ready.insert(rect).is_ok());
        if !sound || !taken.all(|taken| taken) {
            self.fail(Reason::BadReport, now_ms, out);
        }
    }

    fn written(&mut self, feed: usize, link: Link, rect: Rect, now_ms: u64, out: &mut Vec<Action>) {
        if self.phase != SinkPhase::Open {
            return;
        }
        let Some(at) = self.links.iter().position(|own| own.feed == feed && own.link == link) else {
            return self.fail(Reason::BadReport, now_ms, out);
        };
        if !rect.is_within(self.spec.wanted) || self.spec.verb != Verb::Write {
            return self.fail(Reason::BadReport, now_ms, out);
        }
        self.first_byte_at_ms = None;
        if self.spec.staging.is_none() {
            self.cover(at, rect, now_ms, out);
        } else if self.links[at].ready.insert(rect).is_err() {
            self.fail(Reason::BadReport, now_ms, out);
        }
    }

    /// A link has brought a part. The engine is told of what all links have brought, once.
    pub(super) fn cover(&mut self, at: usize, rect: Rect, now_ms: u64, out: &mut Vec<Action>) {
        let Ok(mut parts) = self.links[at].covered.insert(rect) else {
            return self.fail(Reason::BadReport, now_ms, out);
        };
        for (_, other) in self.links.iter().enumerate().filter(|(other, _)| *other != at) {
            parts =
                parts.into_iter().flat_map(|part| other.covered.within(part).collect::<Vec<_>>()).collect();
        }
        for part in parts {
            let Ok(news) = self.told.insert(part) else {
                return self.fail(Reason::BadReport, now_ms, out);
            };
            let attempt = self.spec.attempt;
            out.extend(news.into_iter().map(|rect| Action::Arrived { attempt, rect }));
        }
    }
}
