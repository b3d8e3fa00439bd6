//! KV blocks that a prefill worker holds for a request, while what leads to them is in this host's hands.
//!
//! Each meets one end: sent to a decode worker, expired, or given back. What is dropped unsent is given back: its holder
//! is told to free the blocks, by a decode engine (see [`crate::release`]) or by this host's own node, so that no path
//! out of a request strands them.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sluice_core::health::State;
use sluice_core::verdict::TransferMode;

use crate::fleet::{HandleGuard, Pool, Worker};
use crate::handle::Handle;
use crate::http::segments::Taken;
use crate::node::hand_over::HandOver;
use crate::release::Releases;
use crate::request::Endpoint;
use crate::telemetry::labels::{Fallback, HandleFate};

/// What is known of held blocks.
pub struct Blocks {
    /// What leads to them.
    pub way: Way,
    /// See [`Blocks::good_until`].
    pub lease_ends: OnceLock<Duration>,
    /// Whose decode workers may fetch them.
    pub pool: Arc<Pool>,
    /// Who holds them.
    pub holder: Arc<Worker>,
    /// Which of its lives the holder was in when it made them.
    pub incarnation: u32,
    /// Where the request came in.
    pub endpoint: Endpoint,
    /// Counts them as kept by their holder.
    pub kept: Arc<HandleGuard>,
}

/// What leads to held blocks.
pub enum Way {
    /// An engine's own handle, for the decode engine to fetch them by.
    Handle(Handle),
    /// A hand-over that this host makes.
    HandOver(Box<HandOver>),
}

/// Blocks that no decode worker was sent to yet.
pub struct Held {
    blocks: Arc<Blocks>,
    releases: Releases,
    /// How often a decode leg was to have them.
    attempts: u32,
    /// Whether it is still to be sent or given back.
    is_in_hand: bool,
}

/// A handle, or this host's word, on its way to a decode worker. Until the first byte of the leg's body is taken for
/// sending no engine can have it: dropped before that, as when no connection comes about, it is given back.
pub struct Spent {
    blocks: Arc<Blocks>,
    releases: Releases,
    consumer: Arc<Worker>,
    /// The number of this attempt, from 1 on.
    attempt: u32,
    taken: Taken,
    /// What is counted of it once it has left.
    fate: HandleFate,
    is_in_hand_again: bool,
    is_counted: bool,
}

/// Why a handle is of no use any more: a read might find another request's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// Its lease is over, or about to be.
    Expired,
    /// Its holder is down, or another process than the one that made the blocks.
    WithHolder,
}

impl Blocks {
    /// By the clock that does not step; past it they may be another request's. Until the prefill is done no lease runs.
    pub fn good_until(&self) -> Duration {
        self.lease_ends.get().copied().unwrap_or(Duration::MAX)
    }

    /// The prefill is done: from now on a lease runs, which ends then.
    pub fn lease_began(&self, ends: Duration) {
        // The first word counts: a lease is not renewed by us.
        let _ = self.lease_ends.set(ends);
    }

    /// The hand-over of these blocks, where this host moves them.
    pub fn hand_over(&self) -> Option<&HandOver> {
        match &self.way {
            Way::Handle(_) => None,
            Way::HandOver(hand_over) => Some(hand_over),
        }
    }

    /// How they move.
    pub fn mode(&self) -> TransferMode {
        match &self.way {
            Way::Handle(_) => TransferMode::Pull,
            Way::HandOver(hand_over) => hand_over.mode(),
        }
    }

    /// Counts what became of them.
    pub fn met(&self, fate: HandleFate) {
        self.pool.metrics.transfer(self.mode(), fate);
    }

    /// This host moves them: their holder is told at once that nobody will read them.
    fn release(&self, hand_over: &HandOver) -> HandleFate {
        if hand_over.release() {
            self.kept.over();
            HandleFate::Released
        } else {
            HandleFate::Unreleased
        }
    }
}

/// Nobody was told of the blocks: their holder need not keep them.
fn give_back(blocks: &Arc<Blocks>, releases: &Releases) {
    match &blocks.way {
        Way::Handle(_) => releases.send(blocks.clone()),
        Way::HandOver(hand_over) => blocks.met(blocks.release(hand_over)),
    }
}

impl Held {
    /// Takes charge of blocks.
    pub fn new(blocks: Blocks, releases: &Releases) -> Self {
        Self { blocks: Arc::new(blocks), releases: releases.clone(), attempts: 0, is_in_hand: true }
    }

    /// What it is for.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// The prefill came to nothing, or keeps nothing. Should there be blocks all the same, they are freed.
    pub fn void(mut self) {
        self.is_in_hand = false;
        if let Some(hand_over) = self.blocks.hand_over() {
            self.blocks.release(hand_over);
        }
    }

    /// Takes it for a decode leg to this worker.
    pub fn spend(mut self, consumer: &Arc<Worker>, now: Duration) -> Result<Spent, Gone> {
        let blocks = &self.blocks;
        if now >= blocks.good_until() {
            self.is_in_hand = false;
            blocks.met(HandleFate::Expired);
            return Err(Gone::Expired);
        }
        let still_holds = {
            let holder = blocks.holder.seen();
            holder.health.state == State::Up && holder.incarnation == blocks.incarnation
        };
        if !still_holds {
            self.is_in_hand = false;
            blocks.met(HandleFate::HolderGone);
            return Err(Gone::WithHolder);
        }
        self.is_in_hand = false;
        Ok(Spent {
            blocks: blocks.clone(),
            releases: self.releases.clone(),
            consumer: consumer.clone(),
            attempt: self.attempts + 1,
            taken: Taken::default(),
            // Until it is known to have arrived, a client that leaves abandons it.
            fate: HandleFate::Abandoned,
            is_in_hand_again: false,
            is_counted: true,
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_in_hand {
            give_back(&self.blocks, &self.releases);
        }
    }
}

impl Spent {
    /// The JSON to send.
    pub fn json(&self) -> Cow<'_, str> {
        match &self.blocks.way {
            Way::Handle(handle) => handle.json().into(),
            Way::HandOver(hand_over) => hand_over.decode_params(self.attempt).into(),
        }
    }

    /// To mark the leg's body with.
    pub fn taken(&self) -> Taken {
        self.taken.clone()
    }

    /// Whether an engine may have it.
    pub fn has_left(&self) -> bool {
        self.taken.is_set()
    }

    /// What it leads to.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// To be told when decode has read the blocks.
    pub fn kept(&self) -> Arc<HandleGuard> {
        self.blocks.kept.clone()
    }

    /// It was not sent after all: it is in hand again. `None` if any of it has left.
    pub fn never_left(mut self) -> Option<Held> {
        if self.has_left() {
            return None;
        }
        self.is_in_hand_again = true;
        Some(Held {
            blocks: self.blocks.clone(),
            releases: self.releases.clone(),
            attempts: self.attempt,
            is_in_hand: true,
        })
    }

    /// The prefill came to nothing, and decode with it.
    pub fn void(mut self) {
        // What is counted is what became of prefills that were done.
        self.is_counted = false;
    }

    /// The prefill has answered: what decode waits for must come soon.
    pub fn prefilled(&self) {
        if let Some((hand_over, consumer)) = self.hand_over() {
            // Not taken, it is over by its first deadline.
            hand_over.expect(consumer, self.attempt);
        }
    }

    /// The prefill keeps nothing: decode waits in vain, and shall compute.
    pub fn will_not_come(&self) {
        if let Some((hand_over, consumer)) = self.hand_over() {
            hand_over.cancel(consumer, self.attempt);
        }
    }

    /// Decode answered.
    pub fn arrived(mut self) {
        self.fate = HandleFate::Dispatched;
    }

    /// Decode refused the request. An engine that fetches by itself has told the holder.
    pub fn refused(mut self) {
        match &self.blocks.way {
            Way::Handle(_) => self.fate = HandleFate::Dispatched,
            Way::HandOver(_) => self.fate = HandleFate::Released,
        }
    }

    /// Decode failed: whether it has read the blocks is not known.
    pub fn is_stranded(mut self) {
        self.fate = HandleFate::Stranded;
    }

    /// Decode computed what was held for it: counted, and told once of an engine's life.
    fn tell_ignored(&self) {
        let (pool, worker) = (&self.blocks.pool, &self.consumer);
        pool.metrics.fallback(Fallback::TransferIgnored);
        if !std::mem::replace(&mut worker.seen().ignores_transfers, true) {
            tracing::warn!(
                pool = pool.config.name,
                worker = worker.name,
                "decode answers without the KV that is held for it, so it computes each prompt again: does the engine that \
                 attached under its worker's name do what kv_transfer_params say?"
            );
        }
    }

    /// The hand-over and its consumer's engine, where this host moves the blocks.
    fn hand_over(&self) -> Option<(&HandOver, &str)> {
        Some((self.blocks.hand_over()?, self.consumer.engine.as_deref()?))
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        if self.is_in_hand_again {
            return;
        }
        if !self.has_left() && self.is_counted {
            give_back(&self.blocks, &self.releases);
            return;
        }
        if self.is_counted {
            self.blocks.met(self.fate);
        }
        if let Some((hand_over, consumer)) = self.hand_over() {
            // Unlike an engine that reads by itself, this host knows what is under way: it frees nothing before its end.
            if self.fate != HandleFate::Dispatched {
                hand_over.cancel(consumer, self.attempt);
            }
            if self.fate == HandleFate::Dispatched && hand_over.is_ignored() {
                self.tell_ignored();
            }
            // Who has answered needs no more of it: it came, or was computed. An engine that computes says so itself, but
            // by push perhaps before there was a hold.
            self.blocks.release(hand_over);
        }
    }
}
