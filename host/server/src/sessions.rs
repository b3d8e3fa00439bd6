//! The session store: conversations in memory, bounded by count and by time.

use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;
use sluice_core::session::{Session, SessionKey, TurnRecord};

use crate::config;

/// Sessions looked at for one that makes room. Exact order would need a second index; of this many, the
/// longest idle one goes.
const EVICTION_CANDIDATES: usize = 16;

/// All conversations. Losing one costs reuse, never a right answer.
#[derive(Debug)]
pub struct Sessions {
    config: config::Sessions,
    sessions: DashMap<SessionKey, Session>,
    evictions: AtomicUsize,
}

impl Sessions {
    /// An empty store.
    pub fn new(config: config::Sessions) -> Self {
        Self { config, sessions: DashMap::new(), evictions: AtomicUsize::new(0) }
    }

    /// A conversation as of its last turn, copied out; an expired one is not found.
    pub fn get(&self, key: &SessionKey, now_ms: u64) -> Option<Session> {
        let session = self.sessions.get(key)?;
        self.is_live(&session, now_ms).then(|| session.clone())
    }

    /// A turn ended. Makes room first when the store is full.
    pub fn end_turn(&self, key: SessionKey, turn: &TurnRecord, now_ms: u64) {
        if self.sessions.len() >= self.config.max_sessions && !self.sessions.contains_key(&key) {
            self.evict_one();
        }
        let mut entry = self.sessions.entry(key).or_default();
        let before = (entry.turns > 0 && self.is_live(&entry, now_ms)).then(|| entry.clone());
        *entry = Session::after(before.as_ref(), turn);
    }

    /// Drops what expired. Called now and then, so that idle sessions do not stay for ever.
    pub fn sweep(&self, now_ms: u64) {
        self.sessions.retain(|_, session| self.is_live(session, now_ms));
    }

    /// How many are stored.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether none is stored.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// How many made room for others.
    pub fn evictions(&self) -> usize {
        self.evictions.load(Ordering::Relaxed)
    }

    fn is_live(&self, session: &Session, now_ms: u64) -> bool {
        now_ms.saturating_sub(session.ended_at_ms) < self.config.ttl_ms
    }

    fn evict_one(&self) {
        let oldest = self
            .sessions
            .iter()
            .take(EVICTION_CANDIDATES)
            .min_by_key(|entry| entry.value().ended_at_ms)
            .map(|entry| entry.key().clone());
        if let Some(key) = oldest {
            self.sessions.remove(&key);
            self.evictions.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::session::PromptMark;

    use super::*;

    fn key(conversation: &str, tenant: &str) -> SessionKey {
        SessionKey {
            tenant: tenant.to_owned(),
            model: "m".to_owned(),
            endpoint: "/v1/chat/completions",
            conversation: conversation.to_owned(),
        }
    }

    fn turn(ended_at_ms: u64) -> TurnRecord {
        TurnRecord {
            decode: 1,
            prefill: 2,
            prompt: PromptMark::default(),
            prompt_tokens: 1,
            output_tokens: 1,
            started_at_ms: ended_at_ms,
            ended_at_ms,
        }
    }

    fn store(max_sessions: usize) -> Sessions {
        Sessions::new(config::Sessions { ttl_ms: 1_000, max_sessions })
    }

    #[test]
    fn sessions_expire() {
        let store = store(10);
        store.end_turn(key("a", "t"), &turn(5_000), 5_000);
        assert!(store.get(&key("a", "t"), 5_999).is_some());
        assert!(store.get(&key("a", "t"), 6_000).is_none());
        // A turn after the expiry starts anew.
        store.end_turn(key("a", "t"), &turn(7_000), 7_000);
        assert_eq!(store.get(&key("a", "t"), 7_000).map(|session| session.turns), Some(1));
        store.sweep(9_000);
        assert!(store.is_empty());
    }

    #[test]
    fn a_session_never_crosses_tenants() {
        let store = store(10);
        store.end_turn(key("a", "mine"), &turn(1), 1);
        assert!(store.get(&key("a", "theirs"), 1).is_none());
    }

    #[test]
    fn the_store_is_bounded() {
        let store = store(8);
        for n in 0..100 {
            store.end_turn(key(&n.to_string(), "t"), &turn(n), n);
        }
        assert_eq!((store.len(), store.evictions()), (8, 92));
        assert!(store.get(&key("99", "t"), 99).is_some());
    }
}
