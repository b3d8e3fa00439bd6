//! What went where, and how it ended.

use std::collections::BTreeMap;

use sluice_engine_sdk::wire::Refused;

use super::events::Detached;
use crate::protocol::{Direction, EngineId, HoldEnd, Peer, Reason, Verb};

/// From whose memory to whose, how and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Whose memory it is from.
    pub source: Peer,
    /// Whose memory it goes to.
    pub sink: Peer,
    /// Who posts.
    pub verb: Verb,
    /// Which way.
    pub direction: Direction,
}

/// A flow between engines of which one has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Departed {
    /// Whose memory it was from.
    pub source: EngineId,
    /// Whose memory it went to.
    pub sink: EngineId,
    /// Who posted.
    pub verb: Verb,
    /// Which way.
    pub direction: Direction,
}

/// Pairs of engines whose figures are kept apart after one has left: those of a host that is full, both ways by both
/// verbs, and engines come back under their names.
const MAX_DEPARTED: usize = 4_096;

/// Of one flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowFigures {
    /// Bytes that are in place.
    pub bytes: u64,
    /// Those of them that were before the source's hold was filled: what hid behind its prefill.
    pub bytes_while_filling: u64,
    /// Operations that ended well.
    pub operations: u64,
    /// Operations that failed or were cancelled.
    pub failed: u64,
    /// Operations under way or waiting.
    pub queued: u64,
    /// How long there were such, in milliseconds, up to the last time that there were none: with `bytes`, how fast it
    /// goes while it goes.
    pub moving_ms: u64,
    /// Copies of all posts, before neighbours were joined.
    pub runs_before: u64,
    /// Copies of all posts.
    pub runs: u64,
    /// Transfers that a deadline ended.
    pub deadline_misses: u64,
}

/// All figures, of about one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Of lives of engines that are attached now.
    pub flows: BTreeMap<Flow, FlowFigures>,
    /// Of earlier lives of engines: from whose memory to whose, whichever lives these were.
    pub departed: BTreeMap<Departed, FlowFigures>,
    /// Of more engines that have left than are told apart, all together.
    pub forgotten: FlowFigures,
    /// Transfers whose consumers have it all.
    pub completed: u64,
    /// Transfers that failed, by reason.
    pub failed: BTreeMap<Reason, u64>,
    /// Holds and receives of engines that were not begun, by reason.
    pub refused: BTreeMap<Refused, u64>,
    /// Holds that ended.
    pub holds: BTreeMap<HoldEnd, u64>,
    /// Engines that left.
    pub detached: BTreeMap<Detached, u64>,
    /// Engines attached now, leaving ones included.
    pub engines: usize,
    /// Endpoints open now.
    pub endpoints: usize,
    /// Endpoints that were closed.
    pub endpoints_closed: u64,
    /// Posts in the fabric.
    pub posts: usize,
    /// Parts that no plan could be made of, or that the fabric refused.
    pub posts_refused: u64,
    /// Messages between engines that found no room.
    pub messages_dropped: u64,
    /// Commands that wait.
    pub commands_waiting: usize,
    /// Commands that found no room.
    pub commands_refused: u64,
    /// Commands of or to engines that are not attached (any more) and that need no answer.
    pub commands_unaddressed: u64,
}

impl FlowFigures {
    /// How many copies became one, on average; `None` before the first.
    #[must_use]
    pub fn coalescing(&self) -> Option<f64> {
        (self.runs > 0).then(|| self.runs_before as f64 / self.runs as f64)
    }

    /// The share of bytes that moved while the prefill went on; `None` before the first.
    #[must_use]
    pub fn overlap(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.bytes_while_filling as f64 / self.bytes as f64)
    }

    fn add(&mut self, other: &Self) {
        let Self {
            bytes,
            bytes_while_filling,
            operations,
            failed,
            queued,
            moving_ms,
            runs_before,
            runs,
            deadline_misses,
        } = other;
        self.bytes += bytes;
        self.bytes_while_filling += bytes_while_filling;
        self.operations += operations;
        self.failed += failed;
        self.queued += queued;
        self.moving_ms += moving_ms;
        self.runs_before += runs_before;
        self.runs += runs;
        self.deadline_misses += deadline_misses;
    }
}

impl Figures {
    /// All flows together, those of engines that have left included.
    #[must_use]
    pub fn total(&self) -> FlowFigures {
        let mut total = self.forgotten;
        self.flows.values().chain(self.departed.values()).for_each(|flow| total.add(flow));
        total
    }

    pub(super) fn flow(&mut self, flow: Flow) -> &mut FlowFigures {
        self.flows.entry(flow).or_default()
    }

    /// A life of an engine is over: its flows are its engine's from now on, so that what was counted never falls.
    pub(super) fn left(&mut self, peer: Peer, why: Detached) {
        *self.detached.entry(why).or_default() += 1;
        let of = |flow: &Flow, _: &mut FlowFigures| flow.source == peer || flow.sink == peer;
        let left: Vec<_> = self.flows.extract_if(.., of).collect();
        for (Flow { source, sink, verb, direction }, figures) in left {
            let key = Departed { source: source.engine, sink: sink.engine, verb, direction };
            let has_room = self.departed.len() < MAX_DEPARTED || self.departed.contains_key(&key);
            let kept = if has_room { self.departed.entry(key).or_default() } else { &mut self.forgotten };
            kept.add(&figures);
        }
    }
}
