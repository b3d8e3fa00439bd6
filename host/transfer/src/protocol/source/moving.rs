//! What registration and readiness together allow.

use super::super::event::{Action, Post};
use super::super::hold::{Hold, HoldPhase};
use super::super::limits::{MAX_LINKS, MAX_OPS_IN_FLIGHT};
use super::super::message::Body;
use super::super::names::Reason;
use super::super::names::{Op, Rect, Verb};
use super::super::region::Region;
use super::{Source, SourcePhase};

impl Source {
    /// Does what registration and readiness together allow, whichever came later.
    pub fn advance(&mut self, hold: &Hold, now_ms: u64, out: &mut Vec<Action>) {
        if !matches!(self.phase, SourcePhase::Waiting | SourcePhase::Moving) {
            return;
        }
        if let Some(reason) = self.hindrance(hold, now_ms) {
            self.abort(reason, now_ms, out);
            return;
        }
        let fine = match self.asked.verb {
            Verb::Write => self.post(hold, out),
            Verb::Read => self.announce(hold, now_ms, out),
        };
        if !fine {
            self.abort(Reason::BadReport, now_ms, out);
        }
    }

    fn hindrance(&self, hold: &Hold, now_ms: u64) -> Option<Reason> {
        let begins = self.phase == SourcePhase::Waiting;
        let reads = self.asked.verb == Verb::Read;
        if let Some(end) = hold.end() {
            // A reader that began in time may have the blocks' confirmation until they go.
            return (begins || !reads).then_some(Reason::HoldEnded(end));
        }
        let known = self.asked.links.iter().all(|link| hold.ready(link.from).is_some());
        let sound = (1..=MAX_LINKS).contains(&self.links.len());
        let grid = hold.spec().grid;
        if self.asked.grid != grid || !grid.has_positions(self.asked.wanted) || !known || !sound {
            return Some(Reason::Incompatible);
        }
        let short = hold.phase() == HoldPhase::Held && hold.left_ms(now_ms) == 0;
        (begins && reads && short).then_some(Reason::LeaseTooShort)
    }

    /// Posts what is wanted, ready and not posted yet, as far as the bound allows.
    fn post(&mut self, hold: &Hold, out: &mut Vec<Action>) -> bool {
        for (at, progress) in self.links.iter_mut().enumerate() {
            let link = self.asked.links[at];
            for rect in untouched(hold.ready(link.from), self.asked.wanted, &progress.posted) {
                if self.ops.len() >= MAX_OPS_IN_FLIGHT {
                    return true;
                }
                if progress.posted.insert(rect).is_err() {
                    return false;
                }
                let op = Op { attempt: self.attempt, number: self.next_op };
                self.next_op += 1;
                self.ops.insert(op.number, (at, rect));
                self.phase = SourcePhase::Moving;
                out.push(Action::Post(Post {
                    op,
                    verb: Verb::Write,
                    peer: self.consumer,
                    key: self.asked.key,
                    link,
                    rect,
                    source: hold.spec().blocks.clone(),
                    sink: self.asked.landing.clone(),
                }));
            }
        }
        true
    }

    /// Offers the blocks once, then says what is wanted, ready and was not said yet.
    fn announce(&mut self, hold: &Hold, now_ms: u64, out: &mut Vec<Action>) -> bool {
        if self.phase == SourcePhase::Waiting {
            self.phase = SourcePhase::Moving;
            self.offer(hold, now_ms, out);
        }
        let mut news = Vec::new();
        for (rank, said) in &mut self.announced {
            for rect in untouched(hold.ready(*rank), self.asked.wanted, said) {
                if said.insert(rect).is_err() {
                    return false;
                }
                news.push(Body::Ready { rank: *rank, rect });
            }
        }
        news.into_iter().for_each(|body| self.say(body, out));
        true
    }

    fn offer(&self, hold: &Hold, now_ms: u64, out: &mut Vec<Action>) {
        self.say(Body::Offer { blocks: hold.spec().blocks.clone(), left_ms: hold.left_ms(now_ms) }, out);
    }

    /// Says again how far it is.
    pub fn report(&self, hold: Option<&Hold>, now_ms: u64, out: &mut Vec<Action>) {
        self.say(Body::Accepted, out);
        if self.is_read_from() {
            if let Some(hold) = hold {
                self.offer(hold, now_ms, out);
            }
            for (rank, said) in &self.announced {
                said.rects().iter().for_each(|rect| self.say(Body::Ready { rank: *rank, rect: *rect }, out));
            }
        }
        for (progress, link) in self.links.iter().zip(&self.asked.links) {
            progress.done.rects().iter().for_each(|r| self.say(Body::Written { link: *link, rect: *r }, out));
        }
    }
}

/// What of a rank's cells is ready and wanted, and not yet in `before`.
fn untouched(ready: Option<&Region>, wanted: Rect, before: &Region) -> Vec<Rect> {
    ready.iter().flat_map(|ready| ready.within(wanted)).flat_map(|rect| before.missing(rect)).collect()
}
