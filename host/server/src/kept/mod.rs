//! Turns whose KV a decode engine keeps for the next turn of their conversation, so that its prefill gets it instead of
//! computing it. In pools whose KV this host moves.
//!
//! A decode leg that may be kept names a hold ([`TurnHold`]). When its answer is whole, `retain` is asked; what it keeps
//! is a [`KeptTurn`] here, one for each conversation. The next turn takes it out, once, for its prefill leg ([`Reuse`]);
//! what may come of it the engines prove ([`sluice_engine_sdk::wire::Proof`]). The wheel ([`wheel`]) asks `heartbeat`
//! when it is due, and ends what is over. The transfer core owns the holds; here is only what this host wants of them.

mod figures;
mod table;
#[cfg(test)]
mod tests;
mod turn_hold;
pub mod wheel;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_core::facts::RequestFacts;
use sluice_core::history::scope::ConversationKey;
use sluice_core::lease::Lease;
use sluice_engine_sdk::wire::TransferId;
use sluice_transfer::node::NodeHandle;
use sluice_transfer::protocol::Peer;
use tokio::sync::Notify;

use crate::fleet::{HandleGuard, Pool, Worker};
use crate::telemetry::metrics::Metrics;
use figures::Counted;
pub use figures::KeptFate;
use table::Table;
pub use turn_hold::{Reuse, TurnHold};

/// A conversation's KV, kept by a decode engine. A copy is for looking at: each turn is ended once, by who took it out.
#[derive(Clone)]
pub struct KeptTurn {
    /// The hold's name.
    pub transfer: TransferId,
    /// Whose engine holds it.
    pub holder: Arc<Worker>,
    /// The engine's name on the link.
    pub engine: String,
    /// Which life of the engine holds it: with that it is gone.
    pub life: Peer,
    /// Tokens held.
    pub tokens: u32,
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
    pub counted: Arc<HeldTokens>,
}

/// Who holds the blocks of kept turns.
pub trait Holders {
    /// Nobody wants a hold any more. Where that cannot be said, it ends with its lease.
    fn release(&self, hold: TransferId);
}

impl Holders for NodeHandle {
    fn release(&self, hold: TransferId) {
        let _ = Self::release(self, hold);
    }
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
    pub fn new(metrics: &Metrics, pools: &[String]) -> Self {
        let counted = metrics.register(|registry| Counted::register(registry, pools));
        Self { table: Mutex::default(), changed: Notify::new(), counted }
    }

    /// Keeps a turn. The one before it in its conversation ends, and the longest idle where there are too many.
    pub fn keep(&self, holders: &impl Holders, key: ConversationKey, turn: KeptTurn) {
        self.counted.count(&turn, KeptFate::Kept);
        let ended = self.table().put(key, turn);
        ended.into_iter().for_each(|(turn, fate)| self.end(holders, turn, fate));
        self.changed.notify_one();
    }

    /// Lets the longest idle turns of a worker go until it holds `tokens` fewer, or none.
    pub fn make_room(&self, holders: &impl Holders, holder: u64, tokens: u64) {
        let mut missing = tokens;
        while missing > 0 {
            let Some(turn) = self.table().take_oldest(|turn| turn.holder.id == holder) else { break };
            missing = missing.saturating_sub(turn.tokens.into());
            self.end(holders, turn, KeptFate::Crowded);
        }
    }

    /// What is kept of a conversation, for those who decide: whose it is, how many tokens, for how long in milliseconds.
    pub fn look(&self, key: &ConversationKey, now_ms: u64) -> Option<(u64, u32, u64)> {
        let table = self.table();
        let turn = table.get(key)?;
        Some((turn.holder.id, turn.tokens, turn.lease.left_ms(now_ms)))
    }

    /// Takes a conversation's turn out for its next one: nobody else gets it.
    pub fn take(&self, key: &ConversationKey) -> Option<KeptTurn> {
        self.table().take(key)
    }

    /// A conversation went on elsewhere, or its turn was not kept: what was kept before is of no use.
    pub fn end_of(&self, holders: &impl Holders, key: &ConversationKey, fate: KeptFate) {
        if let Some(turn) = self.take(key) {
            self.end(holders, turn, fate);
        }
    }

    /// Ends all that a worker keeps.
    pub fn end_all_of(&self, holders: &impl Holders, holder: u64, fate: KeptFate) {
        let turns = self.table().take_all(|turn| turn.holder.id == holder);
        turns.into_iter().for_each(|turn| self.end(holders, turn, fate));
    }

    /// Ends all that went with its engine.
    pub fn end_lost(&self, holders: &impl Holders) {
        let turns = self.table().take_all(|turn| turn.holder.life() != Some(turn.life));
        turns.into_iter().for_each(|turn| self.end(holders, turn, KeptFate::Lost));
    }

    /// Ends a turn that was taken out.
    pub fn end(&self, holders: &impl Holders, turn: KeptTurn, fate: KeptFate) {
        holders.release(turn.transfer);
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
