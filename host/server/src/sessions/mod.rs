//! What is remembered of conversations between their turns.
//!
//! A conversation is known by its key: its scope and the name that the client gives it, or where it gives none the line of
//! histories that it continues ([`sluice_core::history::lines`]). Sessions are in a [store](SessionStore), bounded by count, by bytes and by
//! time; the longest idle go first. A snapshot on disk ([`snapshot`], [`saving`]) outlives the process.

pub mod ends;
mod figures;
pub mod holds;
mod in_flight;
mod memory;
pub mod moment;
mod order;
pub mod saving;
mod scopes;
pub mod snapshot;
mod store;
mod workloads;

#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_core::history::Digest;
use sluice_core::history::chain::Chain;
use sluice_core::history::lines::Found;
use sluice_core::history::scope::{ConversationKey, Scope};
use sluice_core::session::{Gaps, Session, TurnRecord};

use crate::config;
use crate::telemetry::metrics::Metrics;
use figures::Counted;
pub use figures::{Evicted, Snapshot};
use in_flight::InFlight;
pub use in_flight::TurnsInFlight;
use memory::MemoryStore;
use scopes::Scopes;
pub use store::{Gone, SessionStore, Size, Walk};
use workloads::Workloads;

/// Between sweeps. So long after its end at the latest the memory of an expired session is free for others; it is not found from its
/// end on.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A turn that ended well.
#[derive(Debug)]
pub struct EndedTurn<'a> {
    /// The conversation that it belongs to.
    pub key: ConversationKey,
    /// What the conversation is found again by, if its client names none.
    pub mark: Option<Digest>,
    /// Name of its workload.
    pub workload: &'a str,
    /// The turn.
    pub turn: TurnRecord,
}

/// All conversations.
pub struct Sessions {
    store: Box<dyn SessionStore>,
    scopes: Scopes,
    in_flight: Arc<InFlight>,
    workloads: Workloads,
    counted: Counted,
    notes: Mutex<Notes>,
}

/// What is told of the snapshot.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    /// When it was last written, by the clock that does not step, and how many bytes it has.
    pub written: Option<(u64, u64)>,
    /// Why it could not be written since.
    pub failed: Option<String>,
    /// Why the one that was there at the start was not used.
    pub refused: Option<String>,
}

impl Sessions {
    /// None yet.
    pub fn new(config: &config::Sessions, metrics: &Metrics) -> Self {
        let counted = metrics.register(Counted::register);
        let store = Box::new(MemoryStore::new(config, counted.evictions.clone()));
        let (scopes, in_flight, workloads, notes) = Default::default();
        Self { store, scopes, in_flight, workloads, counted, notes }
    }

    /// The scope that all share who are of it.
    pub fn scope(&self, scope: Scope) -> Arc<Scope> {
        self.scopes.shared(scope)
    }

    /// Where a request with this history belongs, if its client names no conversation.
    pub fn find(&self, chain: &Chain) -> Found {
        self.store.find(chain)
    }

    /// A request's conversation, as of its last turn. Counted as hit or miss.
    pub fn look_up(&self, key: Option<&ConversationKey>, now_ms: u64) -> Option<Session> {
        let found = key.and_then(|key| self.get(key, now_ms));
        let counter = if found.is_some() { &self.counted.hits } else { &self.counted.misses };
        counter.inc();
        found
    }

    /// A conversation as of its last turn; an expired one is not found.
    pub fn get(&self, key: &ConversationKey, now_ms: u64) -> Option<Session> {
        self.store.get(key, now_ms)
    }

    /// A turn of a conversation begins; it is in flight until what is returned is dropped.
    pub fn begin_turn(&self, key: &ConversationKey) -> Arc<TurnsInFlight> {
        self.in_flight.begin(key)
    }

    /// A turn ended. The session as it is now; the gap before the turn counts for its workload, too. Those that made room are told of.
    pub fn end_turn(&self, ended: EndedTurn<'_>, now_ms: u64, gone: Gone<'_>) -> Session {
        let EndedTurn { key, mark, workload, turn } = ended;
        let session = self.store.end_turn(key, mark, &turn, now_ms, gone);
        if session.turns > 1 {
            self.workloads.observe(workload, session.gaps.last_ms().into());
        }
        session
    }

    /// Forgets one, and has its turns in flight forget it. Whether it was there, be it that its first turn is in flight.
    pub fn drop_one(&self, key: &ConversationKey) -> bool {
        // In this order: a turn that ends meanwhile either is seen in the store, or sees that it is over.
        let is_in_flight = self.in_flight.end(key);
        self.store.drop_one(key) || is_in_flight
    }

    /// Keys that a tenant's name for a conversation may stand for: one for each model and endpoint that it uses.
    pub fn named(&self, tenant: &str, name: &str) -> Vec<ConversationKey> {
        self.scopes.of(tenant).iter().map(|scope| ConversationKey::named(scope, name)).collect()
    }

    /// The same as operators call it: of one tenant or of all, by the name of a conversation or by the digest of a derived one.
    pub fn known_as(&self, tenant: Option<&str>, id: &str) -> Vec<ConversationKey> {
        let scopes = tenant.map_or_else(|| self.scopes.all(), |tenant| self.scopes.of(tenant));
        let line = Digest::parse(id);
        let keys = scopes.iter().flat_map(|scope| {
            let derived = line.map(|line| ConversationKey::derived(scope, line));
            [Some(ConversationKey::named(scope, id)), derived]
        });
        keys.flatten().collect()
    }

    /// Gaps between turns of a workload.
    pub fn gaps(&self, workload: &str) -> Gaps {
        self.workloads.of(workload)
    }

    /// Gaps of all workloads, by name.
    pub fn workloads(&self) -> Vec<(String, Gaps)> {
        self.workloads.all()
    }

    /// The next ones of a walk over all, see [`SessionStore::batch`].
    pub fn batch(&self, walk: &mut Walk, at_most: usize) -> Vec<(ConversationKey, Session)> {
        self.store.batch(walk, at_most)
    }

    /// Derived conversations, see [`SessionStore::lines`].
    pub fn lines(&self) -> Vec<(Digest, Vec<Digest>)> {
        self.store.lines()
    }

    /// Puts back what was known once, the longest idle first.
    pub fn restore(
        &self,
        sessions: Vec<(ConversationKey, Session)>,
        lines: &[(Digest, Vec<Digest>)],
        workloads: Vec<(String, Gaps)>,
    ) {
        self.store.restore(sessions, lines);
        self.workloads.restore(workloads);
    }

    /// Drops what expired, and tells of it, and scopes that nothing uses. For a background thread.
    pub fn sweep(&self, now_ms: u64, gone: Gone<'_>) {
        self.store.sweep(now_ms, gone);
        self.scopes.sweep();
    }

    /// What is stored.
    pub fn size(&self) -> Size {
        self.store.size()
    }

    /// Brings the metrics up to date.
    pub fn tell(&self) {
        self.counted.size(self.size());
    }

    /// Changes what is told of the snapshot; gives it as it is then.
    pub fn note(&self, change: impl FnOnce(&mut Notes)) -> Notes {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut notes);
        notes.clone()
    }

    /// What was counted.
    pub fn counted(&self) -> &Counted {
        &self.counted
    }
}
