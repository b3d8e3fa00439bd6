//! READs, their confirmation, and copies out of staging.

use super::super::event::{Action, Outcome, Post};
use super::super::limits::MAX_OPS_IN_FLIGHT;
use super::super::message::Body;
use super::super::names::Reason;
use super::super::names::{Op, Verb};
use super::{Fetch, Sink, SinkPhase, Stage};

impl Sink {
    /// Reads or copies what is ready and was not yet, as far as the bound allows.
    pub(super) fn fetch(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        for at in 0..self.links.len() {
            let feed = self.links[at].feed;
            let source = match self.spec.verb {
                Verb::Read => self.feeds[feed].offer.clone(),
                Verb::Write => self.spec.staging.clone(),
            };
            let Some(source) = source else { continue };
            let arrival = &mut self.links[at];
            let open: Vec<_> =
                arrival.ready.rects().iter().flat_map(|r| arrival.fetched.missing(*r)).collect();
            for rect in open {
                if self.ops.len() >= MAX_OPS_IN_FLIGHT {
                    return;
                }
                if self.links[at].fetched.insert(rect).is_err() {
                    return self.fail(Reason::BadReport, now_ms, out);
                }
                let op = Op { attempt: self.spec.attempt, number: self.next_op };
                self.next_op += 1;
                self.ops.insert(op.number, Fetch { link: at, rect, stage: Stage::Moving });
                let post = Post {
                    op,
                    verb: self.spec.verb,
                    peer: self.spec.feeds[feed].peer,
                    key: self.spec.feeds[feed].key,
                    link: self.links[at].link,
                    rect,
                    source: source.clone(),
                    sink: self.spec.blocks.clone(),
                };
                out.push(match self.spec.verb {
                    Verb::Read => Action::Post(post),
                    Verb::Write => Action::CopyOut(post),
                });
            }
        }
    }

    /// A READ of ours is over. It does not count yet: the holder may have given the blocks away meanwhile.
    pub fn posted(&mut self, number: u32, outcome: Outcome, now_ms: u64, out: &mut Vec<Action>) {
        let Some(fetch) = self.ops.get_mut(&number).filter(|fetch| fetch.stage == Stage::Moving) else {
            return;
        };
        let (feed, rect) = (self.links[fetch.link].feed, fetch.rect);
        match (self.phase, outcome) {
            (SinkPhase::Open, Outcome::Done) => {
                fetch.stage = Stage::Confirming;
                self.first_byte_at_ms = None;
                self.say(feed, Body::Confirm { number, rect }, out);
            }
            (_, outcome) => {
                self.ops.remove(&number);
                if outcome == Outcome::Failed {
                    self.fail(Reason::Fabric, now_ms, out);
                }
            }
        }
    }

    /// A copy out of staging is done. Its cells were all in staging before it began, so they count.
    pub fn copied(&mut self, number: u32, now_ms: u64, out: &mut Vec<Action>) {
        let Some(copy) = self.ops.remove(&number) else { return };
        if self.phase == SinkPhase::Open {
            self.cover(copy.link, copy.rect, now_ms, out);
        }
    }

    /// The holder has said whether its blocks were still theirs after a READ.
    pub(super) fn confirmed(
        &mut self,
        feed: usize,
        number: u32,
        held: bool,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(fetch) = self.ops.get(&number).copied() else { return };
        if fetch.stage != Stage::Confirming || self.links[fetch.link].feed != feed {
            return;
        }
        self.ops.remove(&number);
        if held {
            self.cover(fetch.link, fetch.rect, now_ms, out);
        } else {
            self.fail(Reason::Stale, now_ms, out);
        }
    }

    /// Asks again for confirmations that have not come.
    pub(super) fn confirm_again(&self, feed: usize, out: &mut Vec<Action>) {
        for (number, fetch) in &self.ops {
            if fetch.stage == Stage::Confirming && self.links[fetch.link].feed == feed {
                self.say(feed, Body::Confirm { number: *number, rect: fetch.rect }, out);
            }
        }
    }

    /// Whether bytes are moving into the blocks by our own hand.
    pub(super) fn is_fetching(&self, feed: Option<usize>) -> bool {
        let of = |fetch: &Fetch| feed.is_none_or(|feed| self.links[fetch.link].feed == feed);
        self.ops.values().any(|fetch| fetch.stage == Stage::Moving && of(fetch))
    }
}
