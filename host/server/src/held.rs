//! KV blocks that a prefill worker holds for a request, while their handle is in this host's hands.
//!
//! Each handle meets one end: sent to a decode worker, expired, or given back. What is dropped unsent is given back:
//! its holder is told to free the blocks (see [`crate::release`]), so that no path out of a request strands them.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::health::State;

use crate::fleet::{HandleGuard, Pool, Worker};
use crate::handle::Handle;
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
    /// Which of its lives the holder was in when it made them.
    pub incarnation: u32,
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

/// A handle on its way to a decode worker.
pub struct Spent {
    blocks: Arc<Blocks>,
    releases: Releases,
    /// `None` when it is in hand again.
    fate: Option<HandleFate>,
}

/// Why a handle is of no use any more: a read might find another request's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// Its lease is over, or about to be.
    Expired,
    /// Its holder is down, or another process than the one that made the blocks.
    WithHolder,
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

    /// Takes it for a decode leg.
    pub fn spend(mut self, now: Duration) -> Result<Spent, Gone> {
        self.is_in_hand = false;
        let blocks = &self.blocks;
        if now >= blocks.good_until {
            blocks.pool.metrics.transfer(HandleFate::Expired);
            return Err(Gone::Expired);
        }
        let still_holds = {
            let holder = blocks.holder.seen();
            holder.health.state == State::Up && holder.incarnation == blocks.incarnation
        };
        if !still_holds {
            blocks.pool.metrics.transfer(HandleFate::HolderGone);
            return Err(Gone::WithHolder);
        }
        // Until it is known to have arrived, a client that leaves abandons it.
        let fate = Some(HandleFate::Abandoned);
        Ok(Spent { blocks: blocks.clone(), releases: self.releases.clone(), fate })
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

    /// To be told when decode has read the blocks.
    pub fn kept(&self) -> Arc<HandleGuard> {
        self.blocks.kept.clone()
    }

    /// It was not sent after all, since no connection came about: it is in hand again.
    pub fn never_left(mut self) -> Held {
        self.fate = None;
        Held { blocks: self.blocks.clone(), releases: self.releases.clone(), is_in_hand: true }
    }
}

impl Spent {
    /// Decode answered.
    pub fn arrived(mut self) {
        self.fate = Some(HandleFate::Dispatched);
    }

    /// Decode failed: whether it has read the blocks is not known.
    pub fn is_stranded(mut self) {
        self.fate = Some(HandleFate::Stranded);
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        if let Some(fate) = self.fate {
            self.blocks.pool.metrics.transfer(fate);
        }
    }
}
