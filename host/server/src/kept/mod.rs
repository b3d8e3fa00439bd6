//! Turns whose KV a decode engine keeps for the next turn of their conversation, so that its prefill gets it instead of
//! computing it. In pools whose KV this host moves.
//!
//! A decode leg that may be kept names a hold ([`TurnHold`]). When its answer is whole, `retain` is asked; what it keeps
//! is a [`KeptTurn`] here, one for each conversation. The next turn takes it out, once, for its prefill leg ([`Reuse`]);
//! what may come of it the engines prove ([`sluice_engine_sdk::wire::Proof`]). The wheel ([`wheel`]) asks `heartbeat`
//! when it is due, and ends what is over. The transfer core owns the holds; here is only what this host wants of them.

mod figures;
mod table;
mod turn_hold;
pub mod wheel;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_core::facts::RequestFacts;
use sluice_core::lease::Lease;
use sluice_core::session::SessionKey;
use sluice_engine_sdk::wire::TransferId;
use sluice_transfer::node::NodeHandle;
use tokio::sync::Notify;

use crate::fleet::{HandleGuard, Pool, Worker};
use crate::telemetry::Telemetry;
use figures::Counted;
pub use figures::KeptFate;
use table::Table;
pub use turn_hold::{Reuse, TurnHold};

/// A conversation's KV, kept by a decode engine.
pub struct KeptTurn {
    /// The hold's name.
    pub transfer: TransferId,
    /// Whose engine holds it.
    pub holder: Arc<Worker>,
    /// The engine's name on the link.
    pub engine: String,
    /// Tokens held.
    pub tokens: u32,
    /// Tokens of a position of the hold.
    pub position_tokens: u32,
    /// For how long.
    pub lease: Lease,
    /// Who is asked about it.
    pub policy: String,
    /// The pool that it is of.
    pub pool: Arc<Pool>,
    /// As its turn was.
    pub request: RequestFacts,
    /// As its turn had it.
    pub seed: u64,
    /// Counts it as kept by its holder.
    pub counted: HeldTokens,
}

/// Tokens counted as held by a worker, until dropped.
pub struct HeldTokens {
    holder: Arc<Worker>,
    tokens: u32,
    handle: HandleGuard,
}

impl HeldTokens {
    /// Counts them.
    pub fn new(holder: &Arc<Worker>, tokens: u32, handle: HandleGuard) -> Self {
        holder.hold_tokens(tokens);
        Self { holder: holder.clone(), tokens, handle }
    }
}

impl Drop for HeldTokens {
    fn drop(&mut self) {
        self.holder.unhold_tokens(self.tokens);
        // A worker that drains need not wait for what nobody wants any more.
        self.handle.over();
    }
}

/// All kept turns.
pub struct KeptTurns {
    table: Mutex<Table>,
    changed: Notify,
    counted: Counted,
}

impl KeptTurns {
    /// None yet.
    pub fn new(telemetry: &Telemetry, pools: &[String]) -> Self {
        let counted = telemetry.metrics.register(|registry| Counted::register(registry, pools));
        Self { table: Mutex::default(), changed: Notify::new(), counted }
    }

    /// Keeps a turn. The one before it in its conversation ends, and the longest idle where there are too many.
    pub fn keep(&self, node: &NodeHandle, key: SessionKey, turn: KeptTurn) {
        self.counted.count(&turn, KeptFate::Kept);
        let ended = self.table().put(key, turn);
        ended.into_iter().for_each(|(turn, fate)| self.end(node, turn, fate));
        self.changed.notify_one();
    }

    /// What is kept of a conversation, for those who decide: whose it is, how many tokens, for how long in milliseconds.
    pub fn look(&self, key: &SessionKey, now_ms: u64) -> Option<(u64, u32, u64)> {
        let table = self.table();
        let turn = table.get(key)?;
        Some((turn.holder.id, turn.tokens, turn.lease.left_ms(now_ms)))
    }

    /// Takes a conversation's turn out for its next one: nobody else gets it.
    pub fn take(&self, key: &SessionKey) -> Option<KeptTurn> {
        self.table().take(key)
    }

    /// A conversation went on elsewhere, or its turn was not kept: what was kept before is of no use.
    pub fn end_of(&self, node: &NodeHandle, key: &SessionKey, fate: KeptFate) {
        if let Some(turn) = self.take(key) {
            self.end(node, turn, fate);
        }
    }

    /// Ends all that a worker keeps: it drains.
    pub fn end_all_of(&self, node: &NodeHandle, holder: u64) {
        let turns = self.table().take_all_of(holder);
        turns.into_iter().for_each(|turn| self.end(node, turn, KeptFate::Drained));
    }

    /// Ends a turn that was taken out.
    pub fn end(&self, node: &NodeHandle, turn: KeptTurn, fate: KeptFate) {
        // Where the node cannot take it, the hold ends with its lease.
        let _ = node.release(turn.transfer);
        self.counted.count(&turn, fate);
    }

    /// Counts what became of a turn that is not ended by that.
    pub fn count(&self, turn: &KeptTurn, fate: KeptFate) {
        self.counted.count(turn, fate);
    }

    /// Tokens of a prompt came from a kept turn.
    pub fn reused(&self, pool: &str, tokens: u32) {
        self.counted.reused(pool, tokens);
    }

    /// How many turns are kept, and how many tokens they hold.
    pub fn size(&self) -> (usize, u64) {
        self.table().size()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
