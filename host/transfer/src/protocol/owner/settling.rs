//! What follows from a change: level by level, so that the order of events does not matter.

use std::collections::BTreeMap;

use super::super::event::{Action, Place};
use super::super::message::{Body, End, Message};
use super::super::names::{Attempt, Epoch, Peer, TransferId};
use super::super::names::{HoldEnd, Reason};
use super::super::sink::Sink;
use super::super::source::Source;
use super::{Due, Transfers};

impl Transfers {
    /// Does one thing to a sink and whatever follows.
    pub(super) fn with_sink(
        &mut self,
        attempt: Attempt,
        now_ms: u64,
        out: &mut Vec<Action>,
        act: impl FnOnce(&mut Sink, &mut Vec<Action>),
    ) {
        if let Some(sink) = self.sinks.get_mut(&attempt) {
            act(sink, out);
            self.settle_sink(attempt, now_ms, out);
        }
    }

    pub(super) fn with_each_sink(
        &mut self,
        now_ms: u64,
        out: &mut Vec<Action>,
        mut act: impl FnMut(&mut Sink, &mut Vec<Action>),
    ) {
        for attempt in self.sinks.keys().copied().collect::<Vec<_>>() {
            self.with_sink(attempt, now_ms, out, &mut act);
        }
    }

    /// Does one thing to a source and whatever follows.
    pub(super) fn with_source(
        &mut self,
        attempt: Attempt,
        now_ms: u64,
        out: &mut Vec<Action>,
        act: impl FnOnce(&mut Source, &mut Vec<Action>),
    ) {
        if let Some(source) = self.sources.get_mut(&attempt) {
            act(source, out);
            self.settle(attempt.id, now_ms, out);
        }
    }

    pub(super) fn with_each_source(
        &mut self,
        consumer: Peer,
        now_ms: u64,
        out: &mut Vec<Action>,
        mut act: impl FnMut(&mut Source, &mut Vec<Action>),
    ) {
        let of = self.sources.iter().filter(|(_, source)| source.consumer() == consumer);
        for attempt in of.map(|(attempt, _)| *attempt).collect::<Vec<_>>() {
            self.with_source(attempt, now_ms, out, &mut act);
        }
    }

    /// Lets a sink do what has become possible, and forgets it when it is over.
    pub(super) fn settle_sink(&mut self, attempt: Attempt, now_ms: u64, out: &mut Vec<Action>) {
        let Some(sink) = self.sinks.get_mut(&attempt) else { return };
        sink.advance(now_ms, out);
        let due_ms = sink.due_ms();
        if sink.is_over() {
            self.sinks.remove(&attempt);
            self.consumed.attempt(attempt, End::Aborted(Reason::Unknown), now_ms);
            self.due.set(Due::Sink(attempt), None);
            self.rearm_forget();
        } else {
            self.due.set(Due::Sink(attempt), due_ms);
        }
    }

    /// Lets an id's sources and its hold do what has become possible, until nothing more follows.
    pub(super) fn settle(&mut self, id: TransferId, now_ms: u64, out: &mut Vec<Action>) {
        loop {
            let attempts = self.attempts_of(id, |owner| &owner.sources);
            for attempt in &attempts {
                if let (Some(source), Some(hold)) = (self.sources.get_mut(attempt), self.holds.get(&id)) {
                    source.advance(hold, now_ms, out);
                }
            }
            let ended = attempts.iter().any(|attempt| self.report_end(*attempt, now_ms, out));
            if !ended && !self.free_hold(id, now_ms, out) {
                break;
            }
        }
        for attempt in self.attempts_of(id, |owner| &owner.sources) {
            let due_ms = self.sources.get(&attempt).map(Source::due_ms);
            self.due.set(Due::Source(attempt), due_ms);
        }
        self.rearm_hold(id, now_ms);
        self.rearm_forget();
    }

    /// Sends a source's terminal report if it is over, and remembers it.
    fn report_end(&mut self, attempt: Attempt, now_ms: u64, out: &mut Vec<Action>) -> bool {
        let Some(source) = self.sources.get(&attempt) else { return false };
        let Some(end) = source.end() else { return false };
        let (to, message) = (source.consumer(), Message::Transfer(attempt, Body::Ended(end)));
        out.push(Action::Send { to, message });
        self.sources.remove(&attempt);
        self.due.set(Due::Source(attempt), None);
        self.closed.attempt(attempt, end, now_ms);
        if matches!(end, End::Complete { .. }) {
            self.end_hold(attempt.id, HoldEnd::Delivered, now_ms, out);
        }
        true
    }

    /// Ends a hold, once; its blocks follow when nothing moves from them.
    pub(super) fn end_hold(&mut self, id: TransferId, end: HoldEnd, now_ms: u64, out: &mut Vec<Action>) {
        if self.holds.get_mut(&id).is_some_and(|hold| hold.finish(end, now_ms)) {
            out.push(Action::HoldEnded { id, end });
        }
    }

    fn free_hold(&mut self, id: TransferId, now_ms: u64, out: &mut Vec<Action>) -> bool {
        let attempts = self.attempts_of(id, |owner| &owner.sources);
        let any = |is: fn(&Source) -> bool| attempts.iter().any(|attempt| is(&self.sources[attempt]));
        let (pinned, readers) = (any(Source::pins), any(Source::is_read_from));
        let Some(hold) = self.holds.get(&id).filter(|hold| hold.may_free(now_ms, pinned, readers)) else {
            return false;
        };
        let (blocks, end) = (hold.spec().blocks.clone(), hold.end().unwrap_or(HoldEnd::Lost));
        self.holds.remove(&id);
        self.closed.hold(id, end, now_ms);
        out.push(Action::Freed { place: Place::Blocks, blocks });
        for attempt in attempts {
            if let Some(source) = self.sources.get_mut(&attempt) {
                source.abort(Reason::HoldEnded(end), now_ms, out);
            }
        }
        true
    }

    /// The epochs of an id, in order.
    pub(super) fn attempts_of<M>(
        &self,
        id: TransferId,
        of: impl Fn(&Self) -> &BTreeMap<Attempt, M>,
    ) -> Vec<Attempt> {
        let all = Attempt { id, epoch: Epoch(0) }..=Attempt { id, epoch: Epoch(u32::MAX) };
        of(self).range(all).map(|(attempt, _)| *attempt).collect()
    }

    pub(super) fn engine_gone(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        for id in self.holds.keys().copied().collect::<Vec<_>>() {
            self.end_hold(id, HoldEnd::Lost, now_ms, out);
            self.settle(id, now_ms, out);
        }
        for attempt in self.sources.keys().copied().collect::<Vec<_>>() {
            self.with_source(attempt, now_ms, out, |source, out| {
                source.abort(Reason::EngineGone, now_ms, out);
            });
        }
        self.with_each_sink(now_ms, out, |sink, out| sink.fail(Reason::EngineGone, now_ms, out));
    }

    pub(super) fn tick(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        for due in self.due.due(now_ms) {
            match due {
                Due::Sink(attempt) => {
                    self.with_sink(attempt, now_ms, out, |sink, out| sink.tick(now_ms, out));
                }
                Due::Source(attempt) => {
                    self.with_source(attempt, now_ms, out, |source, out| source.tick(now_ms, out));
                }
                Due::Hold(id) => {
                    self.end_hold(id, HoldEnd::Expired, now_ms, out);
                    self.settle(id, now_ms, out);
                }
                Due::Forget => {
                    let holds = &self.holds;
                    self.closed.forget(now_ms, |id| holds.contains_key(&id));
                    self.consumed.forget(now_ms, |_| false);
                    self.rearm_forget();
                }
            }
        }
    }

    /// A hold that has ended and is only pinned is looked at when its writes are over, not by time.
    pub(super) fn rearm_hold(&mut self, id: TransferId, now_ms: u64) {
        let due_ms = self.holds.get(&id).and_then(|hold| {
            let by_time = hold.end().is_none() || hold.due_ms() > now_ms;
            by_time.then_some(hold.due_ms())
        });
        self.due.set(Due::Hold(id), due_ms);
    }

    pub(super) fn rearm_forget(&mut self) {
        let due_ms = self.closed.due_ms().into_iter().chain(self.consumed.due_ms()).min();
        self.due.set(Due::Forget, due_ms);
    }
}
