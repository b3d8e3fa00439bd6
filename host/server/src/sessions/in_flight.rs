//! Turns in flight, by the conversation that they belong to. One that is ended meanwhile stays ended: they neither begin it anew when
//! they are over, nor keep KV for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use dashmap::DashMap;
use sluice_core::history::scope::ConversationKey;

/// All of them: no more than requests in flight, since each entry goes with the last request that is of it.
#[derive(Debug, Default)]
pub(super) struct InFlight(DashMap<ConversationKey, Weak<TurnsInFlight>>);

/// A conversation's turns in flight, those that began since it was ended last. Shared by these turns.
#[derive(Debug)]
pub struct TurnsInFlight {
    all: Arc<InFlight>,
    key: ConversationKey,
    are_over: AtomicBool,
}

impl InFlight {
    /// A turn of this conversation begins.
    pub fn begin(self: &Arc<Self>, key: &ConversationKey) -> Arc<TurnsInFlight> {
        // Whoever drops the last of an entry takes it out of here, so none is dropped while the entry is locked.
        let before;
        let mut entry = self.0.entry(key.clone()).or_default();
        before = entry.upgrade();
        if let Some(turns) = before.as_ref().filter(|turns| !turns.are_over()) {
            return turns.clone();
        }
        let turns = TurnsInFlight { all: self.clone(), key: key.clone(), are_over: AtomicBool::new(false) };
        let turns = Arc::new(turns);
        *entry = Arc::downgrade(&turns);
        drop(entry);
        turns
    }

    /// The conversation is ended. Whether a turn of it is in flight.
    pub fn end(&self, key: &ConversationKey) -> bool {
        // Marked before it is out: who does not find it sees the mark.
        let turns = self.0.get(key).and_then(|entry| {
            let turns = entry.upgrade();
            turns.inspect(|turns| turns.are_over.store(true, Ordering::SeqCst))
        });
        let Some(turns) = turns else { return false };
        self.0.remove_if(key, |_, now| std::ptr::eq(now.as_ptr(), Arc::as_ptr(&turns)));
        true
    }
}

impl TurnsInFlight {
    /// Whether their conversation was ended after they began.
    pub fn are_over(&self) -> bool {
        self.are_over.load(Ordering::SeqCst)
    }
}

impl Drop for TurnsInFlight {
    fn drop(&mut self) {
        // Others may have begun since.
        self.all.0.remove_if(&self.key, |_, turns| turns.strong_count() == 0);
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::history::scope::Scope;

    use super::*;

    fn key(name: &str) -> ConversationKey {
        let scope = Scope {
            tenant: "t".to_owned(),
            model: "m".to_owned(),
            adapter: None,
            salt: None,
            endpoint: "/v1/completions".into(),
        };
        ConversationKey::named(&Arc::new(scope), name)
    }

    #[test]
    fn those_that_began_before_the_end_are_over() {
        let all = Arc::new(InFlight::default());
        assert!(!all.end(&key("a")));
        let (one, same, other) = (all.begin(&key("a")), all.begin(&key("a")), all.begin(&key("b")));
        assert!(all.end(&key("a")));
        assert!(one.are_over() && same.are_over() && !other.are_over());
        let later = all.begin(&key("a"));
        assert!(!later.are_over());
        drop((one, same));
        assert!(all.end(&key("a")) && later.are_over(), "known, though the earlier ones are gone");
        drop((later, other));
        assert!(all.0.is_empty());
    }

    /// Turns begin and end on many threads: none is forgotten, and nothing is left.
    #[test]
    fn nothing_is_left_of_turns_that_race() {
        let all = Arc::new(InFlight::default());
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for number in 0..5_000 {
                        let turn = all.begin(&key(if number % 3 == 0 { "a" } else { "b" }));
                        let is_known = turn.are_over() || all.end(&turn.key) || turn.are_over();
                        assert!(is_known);
                        drop(turn);
                    }
                });
            }
        });
        assert!(all.0.is_empty());
    }
}
