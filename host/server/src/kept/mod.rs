//! Turns whose KV a decode engine keeps for the next turn of their conversation, so that its prefill gets it instead of
//! computing it. In pools whose KV this host moves, and in bidirectional ones, whose engines do.
//!
//! A decode leg that may be kept names a hold ([`TurnHold`]), or its engine tells of one in its answer. When that is whole,
//! `retain` is asked; what it keeps is a [`KeptTurn`] here, a few for each conversation. The next turn looks for the best
//! ([`sluice_core::kept::found`]) and takes it out, once, for its prefill leg. What may come of it is proven: by the engines, whose KV this host
//! moves ([`sluice_engine_sdk::wire::Proof`]), and by token ids of engines that move it themselves
//! ([`sluice_core::history::guard`]). The wheel ([`wheel`]) asks `heartbeat` when it is due, and ends what is over. The
//! holds are the transfer core's or the engines'; here is only what this host wants of them.
//!
//! What is decided about them is pure, in [`sluice_core::kept`], and simulated there; here are its lock, its holders and its counters.

mod blocks;
mod figures;
pub mod saved;
#[cfg(test)]
mod tests;
mod turn_hold;
mod uncertain;
pub mod wheel;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use sluice_core::facts::RequestFacts;
use sluice_core::history::Digest;
use sluice_core::history::chain::Chain;
use sluice_core::history::guard::Held;
use sluice_core::history::scope::ConversationKey;
use sluice_core::kept::Turn;
use sluice_core::kept::table::Table;
use sluice_core::lease::Lease;
use tokio::sync::Notify;

use crate::app::App;
use crate::fleet::{HandleGuard, Pool, Worker};
use crate::release::{self, EndedTurn};
use crate::telemetry::metrics::Metrics;
pub use blocks::{Blocks, EngineTurn, Hosted, Place};
use figures::Counted;
pub use figures::{KeptFate, NotKept, Unreleased};
pub use turn_hold::{Reuse, TurnHold};

/// Turns kept at a time: about 600 bytes each here; decode engines run out of blocks long before.
const KEPT_AT_MOST: usize = 65_536;

/// A conversation's KV, kept by a decode engine. A copy is for looking at: each turn is ended once, by who took it out.
#[derive(Clone)]
pub struct KeptTurn {
    /// What leads to its blocks.
    pub blocks: Blocks,
    /// Whose engine holds it.
    pub holder: Arc<Worker>,
    /// Tokens held.
    pub tokens: u32,
    /// For how long.
    pub lease: Lease,
    /// The end of its request's history; requests that continue it have it in theirs.
    pub mark: Option<Digest>,
    /// Who is asked about it.
    pub policy: Arc<str>,
    /// The pool that it is of.
    pub pool: Arc<Pool>,
    /// As its turn was.
    pub request: Arc<RequestFacts>,
    /// As its turn had it.
    pub seed: u64,
    /// Counts it as kept by its holder.
    pub counted: Arc<HeldTokens>,
}

impl Turn for KeptTurn {
    fn holder(&self) -> u64 {
        self.holder.id
    }

    fn tokens(&self) -> u32 {
        self.tokens
    }

    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn lease_mut(&mut self) -> &mut Lease {
        &mut self.lease
    }

    fn mark(&self) -> Option<Digest> {
        self.mark
    }

    fn held(&self) -> Option<&Held> {
        match &self.blocks {
            Blocks::Hosted(_) => None,
            Blocks::Engine(engine) => Some(&engine.held),
        }
    }

    fn usable_until_ms(&self) -> u64 {
        match &self.blocks {
            Blocks::Hosted(_) => u64::MAX,
            Blocks::Engine(engine) => engine.place.usable_until_ms,
        }
    }
}

/// Who holds the blocks of kept turns.
pub trait Holders {
    /// Nobody wants a turn any more. Where that cannot be said, it ends with its lease.
    fn release(&self, turn: &KeptTurn);
}

impl Holders for App {
    fn release(&self, turn: &KeptTurn) {
        match &turn.blocks {
            Blocks::Hosted(hosted) => {
                if let Some(node) = &self.node {
                    let _ = node.release(hosted.transfer);
                }
            }
            Blocks::Engine(engine) => release::let_go(self, EndedTurn::of(turn, engine)),
        }
    }
}

/// Tokens counted as held by a worker: until dropped, or as long as its engine has them for certain.
pub struct HeldTokens {
    holder: Arc<Worker>,
    tokens: u32,
    handle: HandleGuard,
    /// When nobody could have the holder let them go.
    stays_until: OnceLock<Duration>,
}

impl HeldTokens {
    /// Counts them.
    pub fn new(holder: &Arc<Worker>, tokens: u32, handle: HandleGuard) -> Self {
        holder.hold_tokens(tokens);
        Self { holder: holder.clone(), tokens, handle, stays_until: OnceLock::new() }
    }

    /// Nobody can have the holder let them go: they count until its own time for them is over, or its engine is another.
    pub fn stay_at(&self, place: &Place) {
        if self.holder.seen().incarnation == place.incarnation {
            let _ = self.stays_until.set(Duration::from_millis(place.ends_ms()));
        }
    }
}

impl Drop for HeldTokens {
    fn drop(&mut self) {
        if let Some(ends) = self.stays_until.get() {
            return self.handle.stays_until(*ends, self.tokens);
        }
        self.holder.unhold_tokens(self.tokens.into());
        // A worker that drains need not wait for what nobody wants any more.
        self.handle.over();
    }
}

/// All kept turns.
pub struct KeptTurns {
    table: Mutex<Table<KeptTurn>>,
    changed: Notify,
    counted: Counted,
}

impl KeptTurns {
    /// None yet.
    pub fn new(metrics: &Metrics, pools: &[String]) -> Self {
        let counted = metrics.register(|registry| Counted::register(registry, pools));
        Self { table: Table::bounded(KEPT_AT_MOST).into(), changed: Notify::new(), counted }
    }

    /// Keeps a turn, of a request with this history. Those that it holds as well end, and the oldest where there are too many.
    pub fn keep(&self, holders: &impl Holders, key: ConversationKey, turn: KeptTurn, chain: Option<&Chain>) {
        self.count(&turn, KeptFate::Kept);
        let ended = self.table().put(key, turn, chain);
        ended.into_iter().for_each(|(turn, why)| self.end(holders, turn, why.into()));
        self.changed.notify_one();
    }

    /// A turn of a conversation ended that is not kept: what it went on from is of no use any more.
    pub fn went_on(&self, holders: &impl Holders, key: &ConversationKey, chain: Option<&Chain>) {
        let ended = self.table().went_on(key, chain);
        ended.into_iter().for_each(|turn| self.end(holders, turn, KeptFate::Superseded));
    }

    /// Lets turns of a worker go until it holds `tokens` fewer, or none: first those that would end first, which is the order
    /// that their policies gave them.
    pub fn make_room(&self, holders: &impl Holders, holder: u64, tokens: u64) {
        let mut missing = tokens;
        while missing > 0 {
            let Some(turn) = self.table().take_first_to_end(holder) else { break };
            missing = missing.saturating_sub(turn.tokens.into());
            self.end(holders, turn, KeptFate::Crowded);
        }
    }

    /// Copies of what is kept of a conversation, each with the number to take it by, the oldest first.
    pub fn of(&self, key: &ConversationKey) -> Vec<(u64, KeptTurn)> {
        self.table().of(key)
    }

    /// Copies of all, the oldest first.
    pub fn all(&self) -> Vec<(ConversationKey, KeptTurn)> {
        self.table().all()
    }

    /// For people: who holds the newest of a conversation, how many tokens, for how much longer in milliseconds, and how many
    /// there are.
    pub fn look(&self, key: &ConversationKey, now_ms: u64) -> Option<(u64, u32, u64, usize)> {
        let turns = self.of(key);
        let (_, newest) = turns.last()?;
        Some((newest.holder.id, newest.tokens, newest.lease.left_ms(now_ms), turns.len()))
    }

    /// Takes this very turn out for a request: nobody else gets it. `None` if somebody has, or it ended.
    pub fn take(&self, key: &ConversationKey, number: u64) -> Option<KeptTurn> {
        self.table().take(key, number)
    }

    /// Ends all that is kept of a conversation.
    pub fn end_of(&self, holders: &impl Holders, key: &ConversationKey, fate: KeptFate) {
        let ended = self.table().take_of(key, |_| true);
        ended.into_iter().for_each(|turn| self.end(holders, turn, fate));
    }

    /// Ends all that a worker keeps.
    pub fn end_all_of(&self, holders: &impl Holders, holder: u64, fate: KeptFate) {
        let turns = self.table().take_all(|turn| turn.holder.id == holder);
        turns.into_iter().for_each(|turn| self.end(holders, turn, fate));
    }

    /// Ends all: this host goes, and nobody comes after it who knows them. What engines keep is given back, for them to be told.
    pub fn end_all(&self, holders: &impl Holders) -> Vec<EndedTurn> {
        let turns = self.table().take_all(|_| true);
        let ended = turns.into_iter().filter_map(|turn| {
            self.count(&turn, KeptFate::Released);
            match &turn.blocks {
                Blocks::Engine(engine) => return Some(EndedTurn::of(&turn, engine)),
                Blocks::Hosted(_) => holders.release(&turn),
            }
            None
        });
        ended.collect()
    }

    /// Ends all that went with its engine.
    pub fn end_lost(&self, holders: &impl Holders) {
        let turns = self.table().take_all(|turn| turn.blocks.are_lost(&turn.holder));
        turns.into_iter().for_each(|turn| self.end(holders, turn, KeptFate::Lost));
    }

    /// Ends a turn that was taken out.
    pub fn end(&self, holders: &impl Holders, turn: KeptTurn, fate: KeptFate) {
        // What is lost was its engine's, which is no more, or does not know it any more.
        if fate != KeptFate::Lost || matches!(turn.blocks, Blocks::Hosted(_)) {
            holders.release(&turn);
        }
        self.count(&turn, fate);
    }

    /// Counts what became of a turn that is not ended by that.
    pub fn count(&self, turn: &KeptTurn, fate: KeptFate) {
        self.count_in(&turn.pool, fate);
    }

    /// Counts what became of a turn of a pool.
    pub fn count_in(&self, pool: &Pool, fate: KeptFate) {
        self.counted.count(&pool.config.name, fate);
    }

    /// Counts a hold of an engine that was let go without having been kept here.
    pub fn not_kept(&self, pool: &Pool, why: NotKept) {
        self.counted.not_kept(&pool.config.name, why);
    }

    /// Counts a hold of an engine that nobody wants and that stays until its own time is over.
    pub fn unreleased(&self, pool: &Pool, why: Unreleased) {
        self.counted.unreleased(&pool.config.name, why);
    }

    /// Counts why a request got nothing of what was kept, or not all of it.
    pub fn missed(&self, pool: &str, why: &'static str) {
        self.counted.missed(pool, why);
    }

    /// Tokens of a prompt came from a kept turn.
    pub fn reused(&self, pool: &str, tokens: u32) {
        self.counted.reused(pool, tokens);
    }

    /// How many turns are kept, and how many tokens they hold.
    pub fn size(&self) -> (usize, u64) {
        self.table().size()
    }

    fn table(&self) -> MutexGuard<'_, Table<KeptTurn>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
