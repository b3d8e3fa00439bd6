//! The session store: conversations in memory, bounded by count and by time.
//!
//! A map holds the sessions; a queue holds one entry per turn, oldest first, and says who goes first, be it for
//! age or for room. An entry that a later turn overtook is stale and passed over.

pub mod holds;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use sluice_core::history::scope::ConversationKey;
use sluice_core::session::{Session, TurnRecord};

use crate::config;

/// Between sweeps. The queue grows by an entry a turn meanwhile, most of them stale in busy conversations: at
/// 10,000 turns a second some 10 MB.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// All conversations. Losing one costs reuse, never a right answer.
#[derive(Debug)]
pub struct Sessions {
    config: config::Sessions,
    sessions: DashMap<ConversationKey, Session>,
    order: Mutex<VecDeque<(u64, ConversationKey)>>,
    evictions: AtomicUsize,
}

impl Sessions {
    /// An empty store.
    pub fn new(config: config::Sessions) -> Self {
        Self { config, sessions: DashMap::new(), order: Mutex::default(), evictions: AtomicUsize::new(0) }
    }

    /// A conversation as of its last turn, copied out; an expired one is not found.
    pub fn get(&self, key: &ConversationKey, now_ms: u64) -> Option<Session> {
        let session = self.sessions.get(key)?;
        self.is_live(&session, now_ms).then(|| session.clone())
    }

    /// A turn ended. The longest idle sessions make room when the store is full.
    pub fn end_turn(&self, key: ConversationKey, turn: &TurnRecord, now_ms: u64) {
        {
            let mut entry = self.sessions.entry(key.clone()).or_default();
            let before = (entry.turns > 0 && self.is_live(&entry, now_ms)).then(|| entry.clone());
            *entry = Session::after(before.as_ref(), turn);
        }
        let mut order = self.order();
        order.push_back((turn.ended_at_ms, key));
        while self.sessions.len() > self.config.max_sessions {
            let Some(dropped) = self.drop_first(&mut order) else { break };
            self.evictions.fetch_add(usize::from(dropped), Ordering::Relaxed);
        }
    }

    /// Drops what expired, and entries that later turns overtook. For a background thread: a store of a million
    /// sessions is gone through in about a second, while turns go on ending.
    pub fn sweep(&self, now_ms: u64) {
        let mut entries = std::mem::take(&mut *self.order());
        entries.retain(|(ended_at_ms, key)| {
            let is_newest = |session: &Session| session.ended_at_ms == *ended_at_ms;
            if now_ms.saturating_sub(*ended_at_ms) >= self.config.ttl_ms {
                self.sessions.remove_if(key, |_, session| is_newest(session));
                return false;
            }
            self.sessions.get(key).is_some_and(|session| is_newest(&session))
        });
        let mut order = self.order();
        // Turns that ended meanwhile are younger than all that was taken out.
        entries.append(&mut order);
        *order = entries;
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

    fn order(&self) -> MutexGuard<'_, VecDeque<(u64, ConversationKey)>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_live(&self, session: &Session, now_ms: u64) -> bool {
        now_ms.saturating_sub(session.ended_at_ms) < self.config.ttl_ms
    }

    /// Takes the first entry off the queue, and its session unless a later turn overtook it. `None` when empty.
    fn drop_first(&self, order: &mut VecDeque<(u64, ConversationKey)>) -> Option<bool> {
        let (ended_at_ms, key) = order.pop_front()?;
        Some(self.sessions.remove_if(&key, |_, session| session.ended_at_ms == ended_at_ms).is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_core::history::scope::Scope;
    use sluice_core::session::PromptMark;

    use super::*;

    fn key(conversation: &str, tenant: &str) -> ConversationKey {
        let scope = Scope {
            tenant: tenant.to_owned(),
            model: "m".to_owned(),
            adapter: None,
            salt: None,
            endpoint: "/v1/chat/completions".into(),
        };
        ConversationKey::named(&Arc::new(scope), conversation)
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
        assert!(
            (92..100).all(|n| store.get(&key(&n.to_string(), "t"), 99).is_some()),
            "the longest idle ones go"
        );
    }

    #[test]
    fn a_turn_keeps_a_session_from_going() {
        let store = store(2);
        store.end_turn(key("old", "t"), &turn(1), 1);
        store.end_turn(key("idle", "t"), &turn(2), 2);
        store.end_turn(key("old", "t"), &turn(3), 3);
        store.end_turn(key("new", "t"), &turn(4), 4);
        assert!(store.get(&key("old", "t"), 4).is_some() && store.get(&key("new", "t"), 4).is_some());
        assert!(store.get(&key("idle", "t"), 4).is_none());
    }

    #[test]
    fn a_sweep_drops_what_later_turns_overtook() {
        let store = store(2);
        for n in 0..1_000 {
            store.end_turn(key("a", "t"), &turn(n), n);
        }
        store.sweep(1_500);
        assert_eq!((store.order().len(), store.len()), (1, 1), "stale entries go, the session does not");
        store.sweep(5_000);
        assert!(store.is_empty());
    }
}
