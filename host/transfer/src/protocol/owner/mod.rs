//! One engine's transfers: every machine by its key, within bounds.

mod messages;
mod settling;

use std::collections::BTreeMap;

use super::closed::Closed;
use super::deadlines::Deadlines;
use super::event::{Action, Event, Generations, NewHold, NewSink};
use super::hold::{Hold, RenewRefused};
use super::limits::Limits;
use super::names::{Attempt, Epoch, TransferId};
use super::names::{HoldEnd, Reason};
use super::sink::Sink;
use super::source::Source;

/// The holds and transfers of one life of one engine. It decides; whoever owns it acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfers {
    limits: Limits,
    holds: BTreeMap<TransferId, Hold>,
    sources: BTreeMap<Attempt, Source>,
    sinks: BTreeMap<Attempt, Sink>,
    /// Of attempts that this engine produces for.
    closed: Closed,
    /// Of attempts that this engine consumed.
    consumed: Closed,
    due: Deadlines<Due>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Hold(TransferId),
    Source(Attempt),
    Sink(Attempt),
    Forget,
}

/// A hold or an attempt that was not begun. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There are as many as there may be.
    #[error("as many of these are open as may be ({0}): try again when some have ended")]
    Full(usize),
    /// The id or epoch was used before.
    #[error("this id or epoch was used before: take a new one")]
    Used,
    /// It makes no sense or breaks a bound.
    #[error("no valid description of a transfer: see the bounds in `limits`")]
    Invalid,
}

impl Transfers {
    /// None yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            holds: BTreeMap::new(),
            sources: BTreeMap::new(),
            sinks: BTreeMap::new(),
            closed: Closed::new(limits.closed),
            consumed: Closed::new(limits.closed),
            due: Deadlines::default(),
        }
    }

    /// Takes a hold: its blocks are about to be computed.
    ///
    /// # Errors
    /// If there are too many, the id is not new, or the description is not valid.
    pub fn hold(&mut self, spec: NewHold, now_ms: u64, out: &mut Vec<Action>) -> Result<(), Refused> {
        let id = spec.id;
        if self.holds.contains_key(&id) || self.closed.get(id).hold.is_some() {
            return Err(Refused::Used);
        }
        if self.holds.len() >= self.limits.holds || !self.can_remember(id) {
            return Err(Refused::Full(self.limits.holds));
        }
        self.holds.insert(id, Hold::new(spec, now_ms).ok_or(Refused::Invalid)?);
        self.settle(id, now_ms, out);
        Ok(())
    }

    /// Begins to receive: registers with the producers. Earlier epochs of the same id are given up.
    ///
    /// # Errors
    /// If there are too many, the epoch is not new, or the description is not valid.
    pub fn receive(&mut self, spec: NewSink, now_ms: u64, out: &mut Vec<Action>) -> Result<(), Refused> {
        let attempt = spec.attempt;
        let over = self.consumed.get(attempt.id).last.is_some_and(|(epoch, _)| epoch >= attempt.epoch);
        let later =
            Attempt { epoch: attempt.epoch, ..attempt }..=Attempt { epoch: Epoch(u32::MAX), ..attempt };
        if over || self.sinks.range(later).next().is_some() {
            return Err(Refused::Used);
        }
        if self.sinks.len() >= self.limits.sinks || !self.consumed.has_room(self.sinks.len()) {
            return Err(Refused::Full(self.limits.sinks));
        }
        let mut begun = Vec::new();
        let sink = Sink::new(spec, now_ms, &mut begun).ok_or(Refused::Invalid)?;
        for earlier in self.attempts_of(attempt.id, |owner| &owner.sinks) {
            self.with_sink(earlier, now_ms, out, |sink, out| sink.fail(Reason::Superseded, now_ms, out));
        }
        out.append(&mut begun);
        self.sinks.insert(attempt, sink);
        self.settle_sink(attempt, now_ms, out);
        Ok(())
    }

    /// A heartbeat for a hold of this engine, this time for `for_ms` if that is named; how long, in milliseconds, a
    /// reader may now count on it. See [`Hold::renew`].
    ///
    /// # Errors
    /// If it is over or of a fixed time, or the time named is no lease.
    pub fn renew(&mut self, id: TransferId, for_ms: Option<u64>, now_ms: u64) -> Result<u64, RenewRefused> {
        let left_ms = self.holds.get_mut(&id).ok_or(RenewRefused::Over)?.renew(for_ms, now_ms)?;
        self.rearm_hold(id, now_ms);
        Ok(left_ms)
    }

    /// Something has happened.
    pub fn handle(
        &mut self,
        event: Event,
        now_ms: u64,
        generations: &impl Generations,
        out: &mut Vec<Action>,
    ) {
        match event {
            Event::Ready { id, rank, rect } => {
                if self.holds.get_mut(&id).is_some_and(|hold| hold.computed(rank, rect).is_err()) {
                    self.end_hold(id, HoldEnd::Released, now_ms, out);
                }
                self.settle(id, now_ms, out);
            }
            Event::Filled(id) => {
                if let Some(hold) = self.holds.get_mut(&id) {
                    hold.filled(now_ms);
                }
                self.settle(id, now_ms, out);
            }
            Event::Release(id) => {
                self.end_hold(id, HoldEnd::Released, now_ms, out);
                self.settle(id, now_ms, out);
            }
            Event::Cancel(attempt) => {
                self.with_sink(attempt, now_ms, out, |sink, out| sink.fail(Reason::Cancelled, now_ms, out));
            }
            Event::Expect { attempt, within_ms } => {
                self.with_sink(attempt, now_ms, out, |sink, _| sink.expect(within_ms, now_ms));
            }
            Event::EngineGone => self.engine_gone(now_ms, out),
            Event::Posted { op, outcome } => {
                self.with_source(op.attempt, now_ms, out, |source, out| {
                    source.posted(op.number, outcome, now_ms, out);
                });
                self.with_sink(op.attempt, now_ms, out, |sink, out| {
                    sink.posted(op.number, outcome, now_ms, out);
                });
            }
            Event::Copied(op) => {
                self.with_sink(op.attempt, now_ms, out, |sink, out| sink.copied(op.number, now_ms, out));
            }
            Event::Message { from, message } => self.message(from, message, now_ms, generations, out),
            Event::PeerLost(peer) => {
                self.with_each_sink(now_ms, out, |sink, out| sink.peer_lost(peer, now_ms, out));
                self.with_each_source(peer, now_ms, out, |source, out| source.peer_lost(now_ms, out));
            }
            Event::EndpointClosed { peer, key } => {
                self.with_each_sink(now_ms, out, |sink, out| sink.endpoint_closed(peer, key, now_ms, out));
                self.with_each_source(peer, now_ms, out, |source, out| source.endpoint_closed(now_ms, out));
            }
            Event::ProcessGone(peer) => {
                self.with_each_sink(now_ms, out, |sink, out| sink.process_gone(peer, now_ms, out));
                self.with_each_source(peer, now_ms, out, |source, out| source.peer_lost(now_ms, out));
            }
            Event::Tick => self.tick(now_ms, out),
        }
    }

    /// When the next [`Event::Tick`] is due.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        self.due.next_ms()
    }

    /// The holds.
    #[must_use]
    pub fn holds(&self) -> &BTreeMap<TransferId, Hold> {
        &self.holds
    }

    /// The attempts that this engine produces for.
    #[must_use]
    pub fn sources(&self) -> &BTreeMap<Attempt, Source> {
        &self.sources
    }

    /// The attempts that this engine consumes.
    #[must_use]
    pub fn sinks(&self) -> &BTreeMap<Attempt, Sink> {
        &self.sinks
    }

    /// How many ids are remembered as over: as producer, as consumer.
    #[must_use]
    pub fn remembered(&self) -> (usize, usize) {
        (self.closed.count(), self.consumed.count())
    }
}
