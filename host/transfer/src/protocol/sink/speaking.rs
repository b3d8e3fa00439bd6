//! What the consumer says, and says again until it is answered.

use std::sync::Arc;

use super::super::event::Action;
use super::super::limits::{DONE_SENDS, RESEND_DOUBLINGS, RESEND_MS};
use super::super::message::{Body, Message, Registration};
use super::super::names::Verb;
use super::{Sink, SinkPhase};

impl Sink {
    /// Says again, to whoever has not answered for a while, what it waits for.
    pub(super) fn resend(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        for feed in 0..self.feeds.len() {
            if !self.speaks_to(feed) || self.feeds[feed].send_at_ms > now_ms {
                continue;
            }
            let body = match self.phase {
                SinkPhase::Open if self.feeds[feed].heard => Body::Ask,
                SinkPhase::Open => Body::Register(self.registration(feed, now_ms)),
                SinkPhase::Closing => Body::Done,
                SinkPhase::Ending(reason) => Body::Abort(reason),
            };
            self.say(feed, body, out);
            if self.phase == SinkPhase::Open {
                self.confirm_again(feed, out);
            }
            let state = &mut self.feeds[feed];
            state.send_at_ms = now_ms + (RESEND_MS << state.sends.min(RESEND_DOUBLINGS));
            state.sends += 1;
        }
    }

    /// Whether there is still something that a feed should be told until it answers.
    pub(super) fn speaks_to(&self, feed: usize) -> bool {
        self.feeds[feed].end.is_none()
            && match self.phase {
                SinkPhase::Open => true,
                SinkPhase::Closing => !self.is_heard_out(feed),
                SinkPhase::Ending(_) => !(self.is_fenced(feed) && self.is_heard_out(feed)),
            }
    }

    /// Whether a feed has said its last word, cannot, or was asked often enough for a courtesy.
    pub(super) fn is_heard_out(&self, feed: usize) -> bool {
        let state = &self.feeds[feed];
        state.end.is_some() || state.fenced || state.sends >= DONE_SENDS
    }

    fn registration(&self, feed: usize, now_ms: u64) -> Registration {
        let landing = match (self.spec.verb, &self.spec.staging) {
            (Verb::Read, _) => Arc::from([]),
            (Verb::Write, Some(slots)) => slots.clone(),
            (Verb::Write, None) => self.spec.blocks.clone(),
        };
        Registration {
            verb: self.spec.verb,
            direction: self.spec.direction,
            grid: self.spec.grid,
            wanted: self.spec.wanted,
            key: self.spec.feeds[feed].key,
            links: self.spec.feeds[feed].links.clone(),
            landing,
            left_ms: self.due_ms.saturating_sub(now_ms),
        }
    }

    pub(super) fn say(&self, feed: usize, body: Body, out: &mut Vec<Action>) {
        let message = Message::Transfer(self.spec.attempt, body);
        out.push(Action::Send { to: self.spec.feeds[feed].peer, message });
    }
}
