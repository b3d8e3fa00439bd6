//! Kept turns by conversation, by age and by when something is due.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice_core::history::scope::ConversationKey;
use sluice_core::lease::Lease;

use sluice_core::history::branches::HOLDS_AT_MOST;

use super::KeptTurn;
use super::figures::KeptFate;

/// Turns kept at a time: about 600 bytes each here; decode engines run out of blocks long before.
const KEPT_AT_MOST: usize = 65_536;

pub(super) struct Table {
    /// A few of each conversation, the oldest first.
    turns: HashMap<ConversationKey, Vec<Entry>>,
    /// By when something is to be done.
    due: BTreeSet<(u64, u64)>,
    /// By age: numbers rise.
    by_number: BTreeMap<u64, ConversationKey>,
    numbers: u64,
    count: usize,
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
        Self::bounded(KEPT_AT_MOST)
    }
}

impl Table {
    /// One for so many.
    pub fn bounded(at_most: usize) -> Self {
        let (turns, due, by_number) = (HashMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { turns, due, by_number, numbers: 0, count: 0, tokens: 0, at_most }
    }

    /// Puts a turn in; what has to go for it: those of its conversation that it takes the place of, and the oldest where there are
    /// too many, of the conversation or of all.
    pub fn put(
        &mut self,
        key: ConversationKey,
        turn: KeptTurn,
        is_over: impl Fn(&KeptTurn, &KeptTurn) -> bool,
    ) -> Vec<(KeptTurn, KeptFate)> {
        let over = self.take_of(&key, |before| is_over(before, &turn));
        let mut gone: Vec<_> = over.into_iter().map(|before| (before, KeptFate::Superseded)).collect();
        let others = self.turns.get(&key).map_or(&[][..], |entries| entries);
        if others.len() >= HOLDS_AT_MOST
            && let Some(oldest) = others.first().map(|entry| entry.number)
        {
            gone.extend(self.take_this(&key, oldest).map(|turn| (turn, KeptFate::Crowded)));
        }
        while self.count >= self.at_most {
            let Some(oldest) = self.take_oldest(|_| true) else { break };
            gone.push((oldest, KeptFate::Crowded));
        }
        self.numbers += 1;
        let (number, due_at_ms) = (self.numbers, turn.lease.due_at_ms());
        self.count += 1;
        self.tokens += u64::from(turn.tokens);
        self.due.insert((due_at_ms, number));
        self.by_number.insert(number, key.clone());
        self.turns.entry(key).or_default().push(Entry { number, due_at_ms, turn });
        gone
    }

    /// All of a conversation.
    pub fn of(&self, key: &ConversationKey) -> Vec<(u64, KeptTurn)> {
        let entries = self.turns.get(key).map_or(&[][..], |entries| entries);
        entries.iter().map(|entry| (entry.number, entry.turn.clone())).collect()
    }

    /// All, the oldest first.
    pub fn all(&self) -> Vec<(ConversationKey, KeptTurn)> {
        let turns = self
            .by_number
            .iter()
            .filter_map(|(number, key)| Some((key.clone(), self.entry(key, *number)?.turn.clone())));
        turns.collect()
    }

    fn entry(&self, key: &ConversationKey, number: u64) -> Option<&Entry> {
        self.turns.get(key)?.iter().find(|entry| entry.number == number)
    }

    /// Takes some of a conversation out.
    pub fn take_of(&mut self, key: &ConversationKey, which: impl Fn(&KeptTurn) -> bool) -> Vec<KeptTurn> {
        let entries = self.turns.get(key).map_or(&[][..], |entries| entries);
        let numbers: Vec<_> =
            entries.iter().filter(|entry| which(&entry.turn)).map(|entry| entry.number).collect();
        numbers.into_iter().filter_map(|number| self.take_this(key, number)).collect()
    }

    /// The first turn about which something is to be done now.
    pub fn due(&self, now_ms: u64) -> Option<DueTurn> {
        let (_, number) = self.due.first().filter(|(at_ms, _)| *at_ms <= now_ms)?;
        let key = self.by_number.get(number)?;
        let turn = self.entry(key, *number)?.turn.clone();
        Some(DueTurn { key: key.clone(), number: *number, turn })
    }

    /// A turn goes on under this lease, unless it was taken out meanwhile.
    pub fn goes_on(&mut self, key: &ConversationKey, number: u64, lease: Lease) {
        let entries = self.turns.get_mut(key);
        let Some(entry) = entries.and_then(|all| all.iter_mut().find(|entry| entry.number == number)) else {
            return;
        };
        self.due.remove(&(entry.due_at_ms, number));
        (entry.due_at_ms, entry.turn.lease) = (lease.due_at_ms(), lease);
        self.due.insert((entry.due_at_ms, number));
    }

    /// Takes this very turn out, unless somebody has.
    pub fn take_this(&mut self, key: &ConversationKey, number: u64) -> Option<KeptTurn> {
        let entries = self.turns.get_mut(key)?;
        let place = entries.iter().position(|entry| entry.number == number)?;
        let Entry { due_at_ms, turn, .. } = entries.remove(place);
        if entries.is_empty() {
            self.turns.remove(key);
        }
        self.due.remove(&(due_at_ms, number));
        self.by_number.remove(&number);
        self.count -= 1;
        self.tokens -= u64::from(turn.tokens);
        Some(turn)
    }

    pub fn take_all(&mut self, of: impl Fn(&KeptTurn) -> bool) -> Vec<KeptTurn> {
        let all = self.turns.iter().flat_map(|(key, entries)| entries.iter().map(move |entry| (key, entry)));
        let of = all.filter(|(_, entry)| of(&entry.turn));
        let these: Vec<_> = of.map(|(key, entry)| (key.clone(), entry.number)).collect();
        these.iter().filter_map(|(key, number)| self.take_this(key, *number)).collect()
    }

    /// The longest idle of some.
    pub fn take_oldest(&mut self, of: impl Fn(&KeptTurn) -> bool) -> Option<KeptTurn> {
        let is_one = |(number, key): &(&u64, &ConversationKey)| {
            self.entry(key, **number).is_some_and(|entry| of(&entry.turn))
        };
        let (number, key) = self.by_number.iter().find(is_one)?;
        let (number, key) = (*number, key.clone());
        self.take_this(&key, number)
    }

    /// Of some, the one that its policy gave the least time: it would end first.
    pub fn take_first_to_end(&mut self, of: impl Fn(&KeptTurn) -> bool) -> Option<KeptTurn> {
        let all = self.turns.iter().flat_map(|(key, entries)| entries.iter().map(move |entry| (key, entry)));
        let (key, first) = all
            .filter(|(_, entry)| of(&entry.turn))
            .min_by_key(|(_, entry)| (entry.turn.lease.ends_at_ms(), entry.number))?;
        let (key, number) = (key.clone(), first.number);
        self.take_this(&key, number)
    }

    pub fn next_due_ms(&self) -> Option<u64> {
        self.due.first().map(|(at_ms, _)| *at_ms)
    }

    pub fn size(&self) -> (usize, u64) {
        (self.count, self.tokens)
    }
}
