//! Kept turns by conversation, by age and by when something is due.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice_core::session::SessionKey;

use super::KeptTurn;
use super::figures::KeptFate;

/// Turns kept at a time: about 600 bytes each here; decode engines run out of blocks long before.
const KEPT_AT_MOST: usize = 65_536;

#[derive(Default)]
pub(super) struct Table {
    turns: HashMap<SessionKey, Entry>,
    /// By when something is to be done.
    due: BTreeSet<(u64, u64)>,
    /// By age: numbers rise.
    by_number: BTreeMap<u64, SessionKey>,
    numbers: u64,
    tokens: u64,
}

struct Entry {
    number: u64,
    due_at_ms: u64,
    turn: KeptTurn,
}

impl Table {
    /// Puts a turn in; what has to go for it.
    pub fn put(&mut self, key: SessionKey, turn: KeptTurn) -> Vec<(KeptTurn, KeptFate)> {
        let mut gone: Vec<_> =
            self.take(&key).map(|before| (before, KeptFate::Superseded)).into_iter().collect();
        while self.turns.len() >= KEPT_AT_MOST {
            let Some(oldest) = self.by_number.first_key_value().map(|(_, key)| key.clone()) else { break };
            gone.extend(self.take(&oldest).map(|turn| (turn, KeptFate::Crowded)));
        }
        self.insert(key, turn);
        gone
    }

    /// Puts back what was taken out to be looked after, unless the conversation has another one by now.
    pub fn put_back(&mut self, key: SessionKey, turn: KeptTurn) -> Option<KeptTurn> {
        if self.turns.contains_key(&key) {
            return Some(turn);
        }
        self.insert(key, turn);
        None
    }

    fn insert(&mut self, key: SessionKey, turn: KeptTurn) {
        self.numbers += 1;
        let (number, due_at_ms) = (self.numbers, turn.lease.due_at_ms());
        self.tokens += u64::from(turn.tokens);
        self.due.insert((due_at_ms, number));
        self.by_number.insert(number, key.clone());
        self.turns.insert(key, Entry { number, due_at_ms, turn });
    }

    pub fn get(&self, key: &SessionKey) -> Option<&KeptTurn> {
        self.turns.get(key).map(|entry| &entry.turn)
    }

    pub fn take(&mut self, key: &SessionKey) -> Option<KeptTurn> {
        let Entry { number, due_at_ms, turn } = self.turns.remove(key)?;
        self.due.remove(&(due_at_ms, number));
        self.by_number.remove(&number);
        self.tokens -= u64::from(turn.tokens);
        Some(turn)
    }

    /// Takes out the first turn about which something is to be done now.
    pub fn take_due(&mut self, now_ms: u64) -> Option<(SessionKey, KeptTurn)> {
        let (_, number) = self.due.first().filter(|(at_ms, _)| *at_ms <= now_ms)?;
        let key = self.by_number.get(number)?.clone();
        let turn = self.take(&key)?;
        Some((key, turn))
    }

    pub fn take_all_of(&mut self, holder: u64) -> Vec<KeptTurn> {
        let of = self.turns.iter().filter(|(_, entry)| entry.turn.holder.id == holder);
        let keys: Vec<_> = of.map(|(key, _)| key.clone()).collect();
        keys.iter().filter_map(|key| self.take(key)).collect()
    }

    pub fn next_due_ms(&self) -> Option<u64> {
        self.due.first().map(|(at_ms, _)| *at_ms)
    }

    pub fn size(&self) -> (usize, u64) {
        (self.turns.len(), self.tokens)
    }
}
