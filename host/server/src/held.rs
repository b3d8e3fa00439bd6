//! KV blocks that a prefill worker holds for a request, while their handle is in this host's hands.
//!
//! Each handle meets one end: sent to a decode worker, expired, or given back. What is dropped unsent is given back:
//! its holder is told to free the blocks (see [`crate::release`]), so that no path out of a request strands them.

use std::sync::Arc;
use std::time::Duration;

use crate::fleet::{HandleGuard, Pool, Worker};
use crate::handle::Handle;
use crate::http::segments::Taken;
use crate::release::Releases;
use crate::request::Endpoint;
use crate::telemetry::labels::HandleFate;

/// What is known of held blocks.
pub struct Blocks {
    /// Where they are.
    pub handle: Handle,
    /// By the clock that does not step; past it they may be another request's.
    pub good_until: Duration,
    /// Whose decode workers may fetch them.
    pub pool: Arc<Pool>,
    /// Who holds them.
    pub holder: Arc<Worker>,
    /// Where the handle is from.
    pub endpoint: Endpoint,
    /// Counts them as kept by their holder.
    pub kept: Arc<HandleGuard>,
}

/// A handle that was not sent yet.
pub struct Held {
    blocks: Arc<Blocks>,
    releases: Releases,
    /// Whether it is still to be sent or given back.
    is_in_hand: bool,
}

/// A handle on its way to a decode worker. Until the first byte of the leg's body is taken for sending no engine can
/// have it: dropped before that, as when no connection comes about, it is given back.
pub struct Spent {
    blocks: Arc<Blocks>,
    releases: Releases,
    taken: Taken,
}

impl Held {
    /// Takes charge of blocks.
    pub fn new(blocks: Blocks, releases: &Releases) -> Self {
        Self { blocks: Arc::new(blocks), releases: releases.clone(), is_in_hand: true }
    }

    /// What it is for.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Takes it for a decode leg; `None` when it is too late, since a read might find another request's blocks.
    pub fn spend(mut self, now: Duration) -> Option<Spent> {
        self.is_in_hand = false;
        if now >= self.blocks.good_until {
            self.blocks.pool.metrics.transfer(HandleFate::Expired);
            return None;
        }
        Some(Spent { blocks: self.blocks.clone(), releases: self.releases.clone(), taken: Taken::default() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_in_hand {
            self.releases.send(self.blocks.clone());
        }
    }
}

impl Spent {
    /// The JSON to send.
    pub fn json(&self) -> &str {
        self.blocks.handle.json()
    }

    /// To mark the leg's body with.
    pub fn taken(&self) -> Taken {
        self.taken.clone()
    }

    /// Whether an engine may have it.
    pub fn has_left(&self) -> bool {
        self.taken.is_set()
    }

    /// To be told when decode has read the blocks.
    pub fn kept(&self) -> Arc<HandleGuard> {
        self.blocks.kept.clone()
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        if self.has_left() {
            self.blocks.pool.metrics.transfer(HandleFate::Dispatched);
        } else {
            self.releases.send(self.blocks.clone());
        }
    }
}
