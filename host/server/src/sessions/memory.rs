//! The store in this host's memory.
//!
//! A map holds the sessions. An order holds each once, by when its last turn ended: the longest idle one is its first, and goes first,
//! be it for age or for room. Both are changed under the lock of the map's entry (the order's lock, the second, is held for one
//! change of a tree), so that they agree about who idles; who removes looks at the order first, and then removes only what still
//! stands there.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use dashmap::DashMap;
use sluice_core::history::Digest;
use sluice_core::history::chain::Chain;
use sluice_core::history::lines::{Found, Lines};
use sluice_core::history::scope::{Conversation, ConversationKey};
use sluice_core::session::{Session, TurnRecord};

use super::figures::{Evicted, Evictions};
use super::order::{Order, Stamp};
use super::store::{Gone, SessionStore, Size, Walk};
use crate::config;

/// The map's memory is given back once so little of it is in use: then what is moved for it is little, too.
const SHRINK_BELOW_PART: usize = 8;

/// Entries below which nothing is given back: some 100 KB.
const SHRINK_FROM_ENTRIES: usize = 1_024;

/// What the map holds.
#[derive(Debug, Default)]
pub(super) struct Entry {
    session: Session,
    stamp: Option<Stamp>,
}

/// See the module.
pub struct MemoryStore {
    ttl_ms: u64,
    max_sessions: usize,
    max_bytes: usize,
    sessions: DashMap<ConversationKey, Entry>,
    order: Mutex<Order>,
    lines: RwLock<Lines>,
    evictions: Evictions,
}

impl MemoryStore {
    /// An empty one.
    pub fn new(config: &config::Sessions, evictions: Evictions) -> Self {
        Self {
            ttl_ms: config.ttl_ms,
            max_sessions: config.max_sessions,
            max_bytes: config.max_bytes,
            sessions: DashMap::new(),
            order: Mutex::default(),
            lines: RwLock::new(Lines::new(config.max_sessions)),
            evictions,
        }
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lines<T>(&self, change: impl FnOnce(&mut Lines) -> T) -> T {
        change(&mut self.lines.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_over(&self, ended_at_ms: u64, now_ms: u64) -> bool {
        now_ms.saturating_sub(ended_at_ms) >= self.ttl_ms
    }

    /// The longest idle ones go until the rest fits.
    fn make_room(&self, tell: Gone<'_>) {
        loop {
            let order = self.order();
            let Size { sessions, bytes } = order.size();
            let why = match () {
                () if sessions > self.max_sessions => Evicted::Count,
                // One alone stays, however long its name is.
                () if bytes > self.max_bytes && sessions > 1 => Evicted::Bytes,
                () => return,
            };
            let first = order.first().map(|(stamp, _, key)| (stamp, key.clone()));
            drop(order);
            let Some((stamp, key)) = first else { return };
            self.remove(&key, stamp, why, tell);
        }
    }

    /// Removes a session, unless it has had a turn since it stood there.
    fn remove(&self, key: &ConversationKey, stamp: Stamp, why: Evicted, tell: Gone<'_>) {
        let gone = self.sessions.remove_if(key, |_, entry| entry.stamp == Some(stamp));
        self.order().take(stamp);
        if gone.is_some() {
            self.gone(key, why);
            tell(key, why);
        }
    }

    fn gone(&self, key: &ConversationKey, why: Evicted) {
        if let Conversation::Derived(line) = &key.conversation {
            self.lines(|lines| lines.forget(*line));
        }
        self.evictions.count(why);
    }

    fn put(&self, key: ConversationKey, session: Session) {
        let mut entry = self.sessions.entry(key.clone()).or_default();
        entry.stamp = Some(self.order().put(entry.stamp, key, session.ended_at_ms));
        entry.session = session;
    }

    fn shrink(&self) {
        let is_waste = |used: usize, room: usize| {
            room > SHRINK_FROM_ENTRIES && used.saturating_mul(SHRINK_BELOW_PART) < room
        };
        if is_waste(self.sessions.len(), self.sessions.capacity()) {
            self.sessions.shrink_to_fit();
            self.lines(Lines::shrink);
        }
    }
}

impl SessionStore for MemoryStore {
    fn get(&self, key: &ConversationKey, now_ms: u64) -> Option<Session> {
        let entry = self.sessions.get(key)?;
        (!self.is_over(entry.session.ended_at_ms, now_ms)).then(|| entry.session.clone())
    }

    fn find(&self, chain: &Chain) -> Found {
        self.lines.read().unwrap_or_else(PoisonError::into_inner).find(chain)
    }

    fn end_turn(
        &self,
        key: ConversationKey,
        mark: Option<Digest>,
        turn: &TurnRecord,
        now_ms: u64,
        gone: Gone<'_>,
    ) -> Session {
        let session = {
            let mut entry = self.sessions.entry(key.clone()).or_default();
            let is_live = entry.stamp.is_some() && !self.is_over(entry.session.ended_at_ms, now_ms);
            let session = Session::after(is_live.then_some(&entry.session), turn);
            if let (Conversation::Derived(line), Some(mark)) = (&key.conversation, mark) {
                self.lines(|lines| lines.marked(*line, mark));
            }
            entry.stamp = Some(self.order().put(entry.stamp, key, turn.ended_at_ms));
            entry.session = session.clone();
            session
        };
        self.make_room(gone);
        session
    }

    fn drop_one(&self, key: &ConversationKey) -> bool {
        let Some((_, entry)) = self.sessions.remove(key) else { return false };
        if let Some(stamp) = entry.stamp {
            self.order().take(stamp);
        }
        self.gone(key, Evicted::Dropped);
        true
    }

    fn batch(&self, walk: &mut Walk, at_most: usize) -> Vec<(ConversationKey, Session)> {
        let keys = self.order().batch(walk, at_most);
        let found = keys.into_iter().filter_map(|key| {
            let session = self.sessions.get(&key)?.session.clone();
            Some((key, session))
        });
        found.collect()
    }

    fn lines(&self) -> Vec<(Digest, Vec<Digest>)> {
        self.lines.read().unwrap_or_else(PoisonError::into_inner).save()
    }

    fn restore(&self, sessions: Vec<(ConversationKey, Session)>, lines: &[(Digest, Vec<Digest>)]) {
        let restored = Lines::restore(self.max_sessions, lines);
        self.lines(|lines| *lines = restored);
        sessions.into_iter().for_each(|(key, session)| self.put(key, session));
        // Nobody keeps anything of them yet.
        self.make_room(&mut |_, _| ());
    }

    fn sweep(&self, now_ms: u64, gone: Gone<'_>) {
        loop {
            let order = self.order();
            let over = order.first().filter(|(_, since_ms, _)| self.is_over(*since_ms, now_ms));
            let Some((stamp, key)) = over.map(|(stamp, _, key)| (stamp, key.clone())) else { break };
            drop(order);
            self.remove(&key, stamp, Evicted::Expired, gone);
        }
        self.shrink();
    }

    fn size(&self) -> Size {
        self.order().size()
    }
}
