//! What peers say, each to the machine that it is about.

use super::super::event::{Action, Generations};
use super::super::message::{Body, End, Lease, Message, Registration};
use super::super::names::{Attempt, Peer, TransferId};
use super::super::names::{HoldEnd, Reason};
use super::super::source::Source;
use super::Transfers;

impl Transfers {
    pub(super) fn message(
        &mut self,
        from: Peer,
        message: Message,
        now_ms: u64,
        generations: &impl Generations,
        out: &mut Vec<Action>,
    ) {
        match message {
            Message::Hold(id, lease) => self.lease(from, id, lease, now_ms, out),
            Message::Transfer(attempt, body) => match body {
                Body::Register(asked) => self.register(from, attempt, asked, now_ms, out),
                Body::Ask | Body::Abort(_) | Body::Done | Body::Confirm { .. } => {
                    self.asked(from, attempt, body, now_ms, generations, out);
                }
                Body::Accepted
                | Body::Offer { .. }
                | Body::Ready { .. }
                | Body::Written { .. }
                | Body::Confirmed { .. }
                | Body::Ended(_) => self.answered(from, attempt, body, now_ms, out),
            },
        }
    }

    /// A registration: new, said again, or too late.
    fn register(
        &mut self,
        from: Peer,
        attempt: Attempt,
        asked: Registration,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if let Some(source) = self.sources.get(&attempt) {
            if source.consumer() == from {
                source.report(self.holds.get(&attempt.id), now_ms, out);
            }
            return;
        }
        if let Some(end) = self.over(attempt) {
            return reply(from, attempt, Body::Ended(end), out);
        }
        if self.sources.len() >= self.limits.sources || !self.can_remember(attempt.id) {
            // An answer would be a promise to remember. Silence makes the consumer ask again.
            return;
        }
        for earlier in self.attempts_of(attempt.id, |owner| &owner.sources) {
            if let Some(source) = self.sources.get_mut(&earlier) {
                source.abort(Reason::Superseded, now_ms, out);
            }
        }
        let mut source = Source::new(attempt, from, asked, now_ms);
        reply(from, attempt, Body::Accepted, out);
        if let Some(end) = self.closed.get(attempt.id).hold {
            source.abort(Reason::HoldEnded(end), now_ms, out);
        }
        self.sources.insert(attempt, source);
        self.settle(attempt.id, now_ms, out);
    }

    /// What a consumer says of an attempt that it registered.
    fn asked(
        &mut self,
        from: Peer,
        attempt: Attempt,
        body: Body,
        now_ms: u64,
        generations: &impl Generations,
        out: &mut Vec<Action>,
    ) {
        let Some(source) = self.sources.get_mut(&attempt) else {
            return self.asked_in_vain(from, attempt, &body, now_ms, out);
        };
        if source.consumer() != from {
            return;
        }
        match body {
            Body::Ask => source.report(self.holds.get(&attempt.id), now_ms, out),
            Body::Abort(reason) => source.abort(reason, now_ms, out),
            Body::Done => source.read(),
            Body::Confirm { number, rect } => {
                source.confirm((number, rect), self.holds.get(&attempt.id), generations, out);
            }
            _ => {}
        }
        self.settle(attempt.id, now_ms, out);
    }

    /// The same, of an attempt that is over or was never heard of. From now on it is over: its registration may still
    /// be under way, and must find it so.
    fn asked_in_vain(
        &mut self,
        from: Peer,
        attempt: Attempt,
        body: &Body,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if let Body::Confirm { number, .. } = body {
            return reply(from, attempt, Body::Confirmed { number: *number, held: false }, out);
        }
        let reason = if let Body::Abort(reason) = body { *reason } else { Reason::Unknown };
        let end = match self.over(attempt) {
            Some(end) => end,
            None if self.can_remember(attempt.id) => {
                let end = self.closed.unknown(reason);
                self.closed.attempt(attempt, end, now_ms);
                self.rearm_forget();
                end
            }
            None => return,
        };
        reply(from, attempt, Body::Ended(end), out);
    }

    /// What a producer says of an attempt of ours.
    fn answered(&mut self, from: Peer, attempt: Attempt, body: Body, now_ms: u64, out: &mut Vec<Action>) {
        let feeds = self.sinks.get(&attempt).map(|sink| sink.spec().feeds.as_slice()).unwrap_or_default();
        if let Some(feed) = feeds.iter().position(|feed| feed.peer == from) {
            self.with_sink(attempt, now_ms, out, |sink, out| sink.heard(feed, body, now_ms, out));
        }
    }

    fn lease(&mut self, from: Peer, id: TransferId, lease: Lease, now_ms: u64, out: &mut Vec<Action>) {
        match lease {
            Lease::Renew => {
                let left_ms = self.renew(id, None, now_ms).unwrap_or(0);
                let message = Message::Hold(id, Lease::Left { left_ms });
                out.push(Action::Send { to: from, message });
            }
            Lease::Release => {
                self.end_hold(id, HoldEnd::Released, now_ms, out);
                self.settle(id, now_ms, out);
            }
            Lease::Left { left_ms } => out.push(Action::LeaseLeft { id, left_ms }),
        }
    }

    /// How an attempt that has no source is over, if it is.
    fn over(&self, attempt: Attempt) -> Option<End> {
        let later = self.attempts_of(attempt.id, |owner| &owner.sources).last() > Some(&attempt);
        self.closed.end_of(attempt).or_else(|| later.then(|| self.closed.superseded(attempt.id)))
    }

    /// Whether the end of one more attempt or hold of this id could be remembered, with all that are open now.
    pub(super) fn can_remember(&self, id: TransferId) -> bool {
        let known = self.holds.contains_key(&id) || self.closed.get(id).is_known();
        known || self.closed.has_room(self.holds.len() + self.sources.len())
    }
}

fn reply(to: Peer, attempt: Attempt, body: Body, out: &mut Vec<Action>) {
    out.push(Action::Send { to, message: Message::Transfer(attempt, body) });
}
