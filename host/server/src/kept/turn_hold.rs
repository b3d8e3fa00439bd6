//! What legs are told of kept turns: the decode leg to hold its turn, the next prefill leg to have it brought.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_core::verdict::TransferMode;
use sluice_engine_sdk::leg::{HoldOf, HoldWanted, ReceiveWanted};
use sluice_engine_sdk::wire::{Direction, Extent, TransferId, Verb};
use sluice_transfer::node::{HeldBlocks, NodeHandle};
use sluice_transfer::protocol::limits::MAX_WAIT_MS;

use super::{Blocks, HeldTokens, KeptFate, KeptTurn};
use crate::app::App;
use crate::clock::millis;
use crate::config::HOLD_MARGIN_MS;
use crate::fleet::Pool;

/// How long an engine holds a turn until this host has asked what becomes of it, in milliseconds: the answer's way through
/// a busy host, many times over.
const UNTIL_ASKED_MS: u64 = 20_000;

/// The part of a prefill's time in which a kept turn must begin to come: copying begins at once.
const FIRST_BYTE_PART: u64 = 16;

/// The part in which all of it must have come. The rest is for computing it after all.
const WHOLE_PART: u64 = 4;

/// A turn that its decode engine is to hold when it is over. Dropped, it is not wanted.
pub struct TurnHold {
    node: NodeHandle,
    wanted: HoldWanted,
    is_kept: bool,
}

impl TurnHold {
    /// A hold of this name, in positions that the pool's engines agree on.
    pub fn new(node: &NodeHandle, id: TransferId, position_tokens: u32) -> Self {
        let wanted = HoldWanted {
            transfer: id,
            of: HoldOf::Turn,
            position_tokens,
            fill_ms: UNTIL_ASKED_MS,
            ttl_ms: UNTIL_ASKED_MS,
            margin_ms: HOLD_MARGIN_MS,
            renewable: true,
        };
        Self { node: node.clone(), wanted, is_kept: false }
    }

    /// What the leg is told.
    pub fn wanted(&self) -> &HoldWanted {
        &self.wanted
    }

    /// It is kept for so long. Whether the node takes it; else it ends as if nobody wanted it.
    pub fn keep(&mut self, for_ms: u64) -> bool {
        self.is_kept = self.node.keep(self.wanted.transfer, for_ms).is_ok();
        self.is_kept
    }
}

impl Drop for TurnHold {
    fn drop(&mut self) {
        if !self.is_kept {
            // Where the node cannot take it, the hold ends by itself soon.
            let _ = self.node.release(self.wanted.transfer);
        }
    }
}

/// A kept turn on its way to a prefill engine. Dropped, it is over: what did not come by then comes no more.
pub struct Reuse {
    app: Arc<App>,
    node: NodeHandle,
    transfer: TransferId,
    engine: String,
    pool: Arc<Pool>,
    /// Counts it as held until prefill has answered.
    counted: Mutex<Option<Arc<HeldTokens>>>,
    /// As its engine named it: what this host counted of a stream that tells no counts is a guess.
    extent: Extent,
    verb: Verb,
    threshold_tokens: u32,
}

impl Reuse {
    /// Takes a turn for a prefill leg. `None`, and it is over, if too little is left of it or its hold is gone.
    pub fn of(
        app: &Arc<App>,
        node: &NodeHandle,
        turn: KeptTurn,
        mode: TransferMode,
        threshold_tokens: u32,
    ) -> Option<Self> {
        let left_ms = turn.lease.left_ms(millis(app.clock.elapsed()));
        let Blocks::Hosted(hosted) = turn.blocks.clone() else { return None };
        let Some(HeldBlocks { extent, .. }) = node.hold(hosted.transfer) else {
            app.kept.end(&**app, turn, KeptFate::Lost);
            return None;
        };
        if left_ms <= HOLD_MARGIN_MS {
            app.kept.end(&**app, turn, KeptFate::Expired);
            return None;
        }
        app.kept.count(&turn, KeptFate::Taken);
        let verb = match mode {
            TransferMode::Pull => Verb::Read,
            TransferMode::Push => Verb::Write,
        };
        let KeptTurn { pool, counted, .. } = turn;
        let (transfer, engine) = (hosted.transfer, hosted.engine);
        let counted = Mutex::new(Some(counted));
        let (app, node) = (app.clone(), node.clone());
        Some(Self { app, node, transfer, engine, pool, counted, extent, verb, threshold_tokens })
    }

    /// What the leg is told, which may take this long.
    pub fn wanted(&self, prefill_timeout: Duration) -> ReceiveWanted {
        let within = |part: u64| (millis(prefill_timeout) / part).clamp(1, MAX_WAIT_MS);
        ReceiveWanted {
            transfer: self.transfer,
            epoch: 1,
            source: self.engine.clone(),
            verb: self.verb,
            direction: Direction::DecodeToPrefill,
            tokens: Some(self.extent.end_token),
            position_tokens: self.extent.position_tokens,
            threshold_tokens: self.threshold_tokens,
            first_byte_ms: within(FIRST_BYTE_PART),
            whole_ms: within(WHOLE_PART),
        }
    }

    /// Prefill has answered: so many tokens came, and the turn is spent.
    pub fn came(&self, tokens: u32) {
        self.app.kept.reused(&self.pool.config.name, tokens);
        drop(self.counted.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Reuse {
    fn drop(&mut self) {
        // What was delivered is over already.
        let _ = self.node.release(self.transfer);
    }
}
