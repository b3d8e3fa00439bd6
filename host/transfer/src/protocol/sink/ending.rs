//! Giving up, and letting go of what was exposed.

use super::super::event::{Action, Place};
use super::super::limits::FENCE_PATIENCE_MS;
use super::super::message::End;
use super::super::names::Reason;
use super::super::names::{Key, Peer, Verb};
use super::{Sink, SinkPhase, Stage};

impl Sink {
    /// Gives up: the engine is told, the producers are, and blocks that may still be written to are quarantined.
    pub fn fail(&mut self, reason: Reason, now_ms: u64, out: &mut Vec<Action>) {
        if self.phase != SinkPhase::Open {
            return;
        }
        self.phase = SinkPhase::Ending(reason);
        self.due_ms = now_ms + FENCE_PATIENCE_MS;
        self.first_byte_at_ms = None;
        self.ops.retain(|_, fetch| fetch.stage == Stage::Moving);
        let attempt = self.spec.attempt;
        out.push(Action::Failed { attempt, reason });
        if self.is_fetching(None) {
            out.push(Action::CancelPosts(attempt));
        }
        if !self.blocks_are_safe() {
            out.push(Action::Quarantined { attempt, blocks: self.spec.blocks.clone() });
        }
        self.feeds.iter_mut().for_each(|feed| (feed.sends, feed.send_at_ms) = (0, now_ms));
        self.resend(now_ms, out);
    }

    /// The connection to a producing process is gone. It may live on and write: only closing its endpoint ends that.
    pub fn peer_lost(&mut self, peer: Peer, now_ms: u64, out: &mut Vec<Action>) {
        for feed in self.feeds_of(peer) {
            if self.feeds[feed].end.is_none() {
                self.fail(Reason::PeerLost, now_ms, out);
            }
            if !self.is_fenced(feed) {
                out.push(Action::CloseEndpoint(peer));
            }
        }
    }

    /// Our endpoint for a producing process is closed: neither its writes nor our reads touch our memory any more.
    pub fn endpoint_closed(&mut self, peer: Peer, key: Key, now_ms: u64, out: &mut Vec<Action>) {
        for feed in self.feeds_of(peer) {
            if self.spec.feeds[feed].key != key {
                continue;
            }
            if self.spec.verb == Verb::Read {
                let links = &self.links;
                self.ops.retain(|_, op| op.stage == Stage::Confirming || links[op.link].feed != feed);
            }
            self.fenced(feed, Reason::EndpointClosed, now_ms, out);
        }
    }

    /// The process that did the writing itself is gone, and its writes with it. Our own reads of its memory go on.
    pub fn process_gone(&mut self, peer: Peer, now_ms: u64, out: &mut Vec<Action>) {
        for feed in self.feeds_of(peer) {
            self.fenced(feed, Reason::PeerLost, now_ms, out);
        }
    }

    fn fenced(&mut self, feed: usize, reason: Reason, now_ms: u64, out: &mut Vec<Action>) {
        self.feeds[feed].fenced = true;
        if self.feeds[feed].end.is_none() {
            self.fail(reason, now_ms, out);
        }
    }

    fn feeds_of(&self, peer: Peer) -> Vec<usize> {
        (0..self.feeds.len()).filter(|feed| self.spec.feeds[*feed].peer == peer).collect()
    }

    /// Whether no write of a feed, and no read of ours from it, can touch our memory any more.
    pub(super) fn is_fenced(&self, feed: usize) -> bool {
        let vouched = matches!(self.feeds[feed].end, Some(End::Complete { .. } | End::Aborted(_)));
        match self.spec.verb {
            Verb::Write => vouched || self.feeds[feed].fenced,
            Verb::Read => !self.is_fetching(Some(feed)),
        }
    }

    /// The producing processes whose endpoints would have to be closed.
    pub(super) fn unfenced(&self) -> Vec<Peer> {
        let open = (0..self.feeds.len()).filter(|feed| !self.is_fenced(*feed));
        open.map(|feed| self.spec.feeds[feed].peer).collect()
    }

    /// Whether nobody can write to the final blocks any more. A landing in staging never exposed them.
    fn blocks_are_safe(&self) -> bool {
        let exposed = self.spec.staging.is_none() && !self.unfenced().is_empty();
        !exposed && !self.is_fetching(None)
    }

    /// Gives back what nobody can write to any more, each once.
    pub(super) fn let_go(&mut self, out: &mut Vec<Action>) {
        if self.phase == SinkPhase::Open {
            return;
        }
        if !self.freed.blocks && self.blocks_are_safe() {
            self.freed.blocks = true;
            out.push(Action::Freed { place: Place::Blocks, blocks: self.spec.blocks.clone() });
        }
        if let Some(slots) = self.spec.staging.clone()
            && !self.freed.staging
            && self.unfenced().is_empty()
            && !self.is_fetching(None)
        {
            self.freed.staging = true;
            out.push(Action::Freed { place: Place::Staging, blocks: slots });
        }
    }
}
