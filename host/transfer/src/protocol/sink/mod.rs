//! The consumer's side of one attempt.
//!
//! Here: what it is and when it acts by itself. [`speaking`] says what it waits for, [`arriving`] counts what is in place,
//! [`fetching`] reads and copies, [`ending`] gives up and lets go.

mod arriving;
mod ending;
mod fetching;
mod speaking;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::event::{Action, NewSink};
use super::limits::{FENCE_PATIENCE_MS, MAX_BLOCKS, MAX_LINKS, MAX_SOURCES, MAX_WAIT_MS};
use super::message::End;
use super::names::Reason;
use super::names::Rect;
use super::names::{BlockRef, Link, Verb};
use super::region::Region;

/// The consumer's machine. See the table in [`super`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sink {
    spec: NewSink,
    phase: SinkPhase,
    feeds: Vec<FeedState>,
    links: Vec<Arrival>,
    told: Region,
    ops: BTreeMap<u32, Fetch>,
    next_op: u32,
    first_byte_at_ms: Option<u64>,
    /// Of the whole while it is open, of patience with silent writers after that.
    due_ms: u64,
    freed: Freed,
}

/// Where a sink is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkPhase {
    /// Registered; bytes come, or will.
    Open,
    /// Complete and told so; the holder has yet to hear it.
    Closing,
    /// Given up; blocks come back as their writers are known to be done.
    Ending(Reason),
}

/// What one producing process has said.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FeedState {
    heard: bool,
    end: Option<End>,
    /// It can write no more, by whatever proof.
    fenced: bool,
    offer: Option<Arc<[BlockRef]>>,
    sends: u32,
    send_at_ms: u64,
}

/// What one link has brought.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Arrival {
    feed: usize,
    link: Link,
    /// May be read, or lies in staging.
    ready: Region,
    /// Being read or copied, or done.
    fetched: Region,
    /// In place, for certain.
    covered: Region,
}

/// A READ of ours, or a copy out of staging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fetch {
    link: usize,
    rect: Rect,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Bytes are moving into our blocks.
    Moving,
    /// All were read; the holder has yet to confirm what they were.
    Confirming,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Freed {
    blocks: bool,
    staging: bool,
}

impl Sink {
    /// Registers with every producing process; `None` if the specification makes no sense.
    #[must_use]
    pub fn new(spec: NewSink, now_ms: u64, out: &mut Vec<Action>) -> Option<Self> {
        let links: usize = spec.feeds.iter().map(|feed| feed.links.len()).sum();
        let staging_fits = spec
            .staging
            .as_ref()
            .is_none_or(|slots| spec.verb == Verb::Write && slots.len() == spec.blocks.len());
        let sound = spec.grid.is_valid()
            && spec.grid.has_positions(spec.wanted)
            && (1..=MAX_BLOCKS).contains(&spec.blocks.len())
            && (1..=MAX_SOURCES).contains(&spec.feeds.len())
            && (1..=MAX_LINKS).contains(&links)
            && spec.feeds.iter().all(|feed| !feed.links.is_empty())
            && spec.first_byte_ms <= MAX_WAIT_MS
            && spec.whole_ms <= MAX_WAIT_MS
            && staging_fits;
        if !sound {
            return None;
        }
        let feeds = vec![
            FeedState {
                heard: false,
                end: None,
                fenced: false,
                offer: None,
                sends: 0,
                send_at_ms: now_ms
            };
            spec.feeds.len()
        ];
        let arrival = |feed: usize, link: &Link| Arrival {
            feed,
            link: *link,
            ready: Region::default(),
            fetched: Region::default(),
            covered: Region::default(),
        };
        let links = spec
            .feeds
            .iter()
            .enumerate()
            .flat_map(|(feed, spec)| spec.links.iter().map(move |link| arrival(feed, link)))
            .collect();
        let mut sink = Self {
            phase: SinkPhase::Open,
            feeds,
            links,
            told: Region::default(),
            ops: BTreeMap::new(),
            next_op: 0,
            first_byte_at_ms: Some(now_ms + spec.first_byte_ms),
            due_ms: now_ms + spec.whole_ms,
            freed: Freed { blocks: false, staging: spec.staging.is_none() },
            spec,
        };
        sink.resend(now_ms, out);
        Some(sink)
    }

    /// What it is of.
    #[must_use]
    pub fn spec(&self) -> &NewSink {
        &self.spec
    }

    /// Where it is.
    #[must_use]
    pub fn phase(&self) -> SinkPhase {
        self.phase
    }

    /// Whether nothing is left to be done or to be waited for.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let freed = self.freed.blocks && self.freed.staging;
        match self.phase {
            SinkPhase::Open => false,
            SinkPhase::Closing => freed && (0..self.feeds.len()).all(|feed| self.is_heard_out(feed)),
            SinkPhase::Ending(_) => {
                freed && (0..self.feeds.len()).all(|feed| self.is_fenced(feed) && self.is_heard_out(feed))
            }
        }
    }

    /// When it wants to be looked at again.
    #[must_use]
    pub fn due_ms(&self) -> Option<u64> {
        let sends = (0..self.feeds.len())
            .filter(|feed| self.speaks_to(*feed))
            .map(|feed| self.feeds[feed].send_at_ms);
        let own = match self.phase {
            SinkPhase::Open => Some(self.first_byte_at_ms.map_or(self.due_ms, |at| at.min(self.due_ms))),
            SinkPhase::Closing => None,
            SinkPhase::Ending(_) => (!self.unfenced().is_empty()).then_some(self.due_ms),
        };
        sends.chain(own).min()
    }

    /// The prefill has answered: the first byte is due soon.
    pub fn expect(&mut self, within_ms: u64, now_ms: u64) {
        self.first_byte_at_ms = self.first_byte_at_ms.map(|at| at.min(now_ms.saturating_add(within_ms)));
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        match self.phase {
            SinkPhase::Open if self.due_ms <= now_ms => self.fail(Reason::TooSlow, now_ms, out),
            SinkPhase::Open if self.first_byte_at_ms.is_some_and(|at| at <= now_ms) => {
                self.fail(Reason::NoFirstByte, now_ms, out);
            }
            SinkPhase::Ending(_) if self.due_ms <= now_ms => {
                // The blocks stay where they are: what frees them is the endpoint's end, not this moment.
                out.extend(self.unfenced().into_iter().map(Action::CloseEndpoint));
                self.due_ms = now_ms + FENCE_PATIENCE_MS;
            }
            _ => {}
        }
        self.resend(now_ms, out);
    }
}
