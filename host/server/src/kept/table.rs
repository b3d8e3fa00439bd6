//! Kept turns by conversation, by age and by when something is due.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice_core::history::scope::ConversationKey;
use sluice_core::lease::Lease;

use super::KeptTurn;
use super::figures::KeptFate;

/// Turns kept at a time: about 600 bytes each here; decode engines run out of blocks long before.
const KEPT_AT_MOST: usize = 65_536;

pub(super) struct Table {
    turns: HashMap<ConversationKey, Entry>,
    /// By when something is to be done.
    due: BTreeSet<(u64, u64)>,
    /// By age: numbers rise.
    by_number: BTreeMap<u64, ConversationKey>,
    numbers: u64,
    tokens: u64,
    at_most: usize,
}

struct Entry {
    number: u64,
    due_at_ms: u64,
    turn: KeptTurn,
}

/// A turn about which something is to be done. It stays where it is meanwhile, to be had by whoever wants it.
pub(super) struct DueTurn {
    pub key: ConversationKey,
    /// Tells it from a later one of its conversation.
    pub number: u64,
    pub turn: KeptTurn,
}

impl Default for Table {
    fn default() -> Self {
        Self::of(KEPT_AT_MOST)
    }
}

impl Table {
    /// One for so many.
    pub fn of(at_most: usize) -> Self {
        let (turns, due, by_number) = (HashMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { turns, due, by_number, numbers: 0, tokens: 0, at_most }
    }

    /// Puts a turn in; what has to go for it.
    pub fn put(&mut self, key: ConversationKey, turn: KeptTurn) -> Vec<(KeptTurn, KeptFate)> {
        let mut gone: Vec<_> =
            self.take(&key).map(|before| (before, KeptFate::Superseded)).into_iter().collect();
        while self.turns.len() >= self.at_most {
            let Some(oldest) = self.by_number.first_key_value().map(|(_, key)| key.clone()) else { break };
            gone.extend(self.take(&oldest).map(|turn| (turn, KeptFate::Crowded)));
        }
        self.numbers += 1;
        let (number, due_at_ms) = (self.numbers, turn.lease.due_at_ms());
        self.tokens += u64::from(turn.tokens);
        self.due.insert((due_at_ms, number));
        self.by_number.insert(number, key.clone());
        self.turns.insert(key, Entry { number, due_at_ms, turn });
        gone
    }

    pub fn get(&self, key: &ConversationKey) -> Option<&KeptTurn> {
        self.turns.get(key).map(|entry| &entry.turn)
    }

    pub fn take(&mut self, key: &ConversationKey) -> Option<KeptTurn> {
        let Entry { number, due_at_ms, turn } = self.turns.remove(key)?;
        self.due.remove(&(due_at_ms, number));
        self.by_number.remove(&number);
        self.tokens -= u64::from(turn.tokens);
        Some(turn)
    }

    /// The first turn about which something is to be done now.
    pub fn due(&self, now_ms: u64) -> Option<DueTurn> {
        let (_, number) = self.due.first().filter(|(at_ms, _)| *at_ms <= now_ms)?;
        let key = self.by_number.get(number)?;
        Some(DueTurn { key: key.clone(), number: *number, turn: self.get(key)?.clone() })
    }

    /// A turn goes on under this lease, unless it was taken out meanwhile.
    pub fn goes_on(&mut self, key: &ConversationKey, number: u64, lease: Lease) {
        let Some(entry) = self.turns.get_mut(key).filter(|entry| entry.number == number) else { return };
        self.due.remove(&(entry.due_at_ms, number));
        (entry.due_at_ms, entry.turn.lease) = (lease.due_at_ms(), lease);
        self.due.insert((entry.due_at_ms, number));
    }

    /// Takes this very turn out, unless somebody has.
    pub fn take_this(&mut self, key: &ConversationKey, number: u64) -> Option<KeptTurn> {
        self.turns.get(key).filter(|entry| entry.number == number)?;
        self.take(key)
    }

    pub fn take_all(&mut self, of: impl Fn(&KeptTurn) -> bool) -> Vec<KeptTurn> {
        let of = self.turns.iter().filter(|(_, entry)| of(&entry.turn));
        let keys: Vec<_> = of.map(|(key, _)| key.clone()).collect();
        keys.iter().filter_map(|key| self.take(key)).collect()
    }

    /// The longest idle of some.
    pub fn take_oldest(&mut self, of: impl Fn(&KeptTurn) -> bool) -> Option<KeptTurn> {
        let is_one = |key: &&ConversationKey| self.get(key).is_some_and(&of);
        let key = self.by_number.values().find(is_one)?.clone();
        self.take(&key)
    }

    pub fn next_due_ms(&self) -> Option<u64> {
        self.due.first().map(|(at_ms, _)| *at_ms)
    }

    pub fn size(&self) -> (usize, u64) {
        (self.turns.len(), self.tokens)
    }
}
