//! Kept turns by conversation, by age and by when something is due.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Ended, Turn};
use crate::history::chain::Chain;
use crate::history::scope::ConversationKey;
use crate::lease::Lease;

/// Turns kept of a conversation. Each keeps blocks from an engine's decoding; more than a few branches are not gone on with.
pub const BRANCHES_AT_MOST: usize = 4;

/// Kept turns, bounded in number. What is decided here never follows from the order of a hash map.
#[derive(Debug)]
pub struct Table<T> {
    /// A few of each conversation, the oldest first.
    turns: HashMap<ConversationKey, Vec<Entry<T>>>,
    /// By when something is to be done.
    due: BTreeSet<(u64, u64)>,
    /// By holder, and of one by when their leases end.
    ends: BTreeSet<(u64, u64, u64)>,
    /// By age: numbers rise.
    by_number: BTreeMap<u64, ConversationKey>,
    numbers: u64,
    count: usize,
    tokens: u64,
    at_most: usize,
}

#[derive(Debug)]
struct Entry<T> {
    number: u64,
    due_at_ms: u64,
    turn: T,
}

impl<T: Turn> Entry<T> {
    /// Its place among those that end.
    fn end(&self) -> (u64, u64, u64) {
        (self.turn.holder(), self.turn.lease().ends_at_ms(), self.number)
    }
}

/// A turn about which something is to be done. It stays where it is meanwhile, to be had by whoever wants it.
#[derive(Debug)]
pub struct DueTurn<T> {
    /// Of which conversation.
    pub key: ConversationKey,
    /// Tells it from a later one of its conversation.
    pub number: u64,
    /// A copy of it.
    pub turn: T,
}

impl<T: Turn> Table<T> {
    /// An empty one for so many.
    pub fn bounded(at_most: usize) -> Self {
        let (turns, due, ends, by_number) =
            (HashMap::new(), BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        Self { turns, due, ends, by_number, numbers: 0, count: 0, tokens: 0, at_most }
    }

    /// Puts in a turn of a request with this history; what has to go for it: those of its conversation that it takes the place of,
    /// and the oldest where there are too many, of the conversation or of all.
    pub fn put(&mut self, key: ConversationKey, turn: T, chain: Option<&Chain>) -> Vec<(T, Ended)> {
        let over = self.take_of(&key, |before| before.is_superseded_by(&turn, chain));
        let mut gone: Vec<_> = over.into_iter().map(|before| (before, Ended::Superseded)).collect();
        let others = self.turns.get(&key).map_or(&[][..], |entries| entries);
        if others.len() >= BRANCHES_AT_MOST
            && let Some(oldest) = others.first().map(|entry| entry.number)
        {
            gone.extend(self.take(&key, oldest).map(|turn| (turn, Ended::Crowded)));
        }
        while self.count >= self.at_most {
            let Some(oldest) = self.take_oldest() else { break };
            gone.push((oldest, Ended::Crowded));
        }
        self.numbers += 1;
        let (number, due_at_ms) = (self.numbers, turn.lease().due_at_ms());
        self.count += 1;
        self.tokens += u64::from(turn.tokens());
        self.due.insert((due_at_ms, number));
        self.by_number.insert(number, key.clone());
        let entry = Entry { number, due_at_ms, turn };
        self.ends.insert(entry.end());
        self.turns.entry(key).or_default().push(entry);
        gone
    }

    /// A turn of a conversation ended that is not kept: takes out what it went on from, which is of no use any more.
    pub fn went_on(&mut self, key: &ConversationKey, chain: Option<&Chain>) -> Vec<T> {
        self.take_of(key, |turn| turn.is_before(chain))
    }

    /// Copies of all of a conversation, each with the number to take it by, the oldest first.
    pub fn of(&self, key: &ConversationKey) -> Vec<(u64, T)> {
        let entries = self.turns.get(key).map_or(&[][..], |entries| entries);
        entries.iter().map(|entry| (entry.number, entry.turn.clone())).collect()
    }

    /// Copies of all, the oldest first.
    pub fn all(&self) -> Vec<(ConversationKey, T)> {
        let turns = self
            .by_number
            .iter()
            .filter_map(|(number, key)| Some((key.clone(), self.entry(key, *number)?.turn.clone())));
        turns.collect()
    }

    fn entry(&self, key: &ConversationKey, number: u64) -> Option<&Entry<T>> {
        self.turns.get(key)?.iter().find(|entry| entry.number == number)
    }

    /// Takes some of a conversation out, the oldest first.
    pub fn take_of(&mut self, key: &ConversationKey, which: impl Fn(&T) -> bool) -> Vec<T> {
        let entries = self.turns.get(key).map_or(&[][..], |entries| entries);
        let numbers: Vec<_> =
            entries.iter().filter(|entry| which(&entry.turn)).map(|entry| entry.number).collect();
        numbers.into_iter().filter_map(|number| self.take(key, number)).collect()
    }

    /// The first turn about which something is to be done now.
    pub fn due(&self, now_ms: u64) -> Option<DueTurn<T>> {
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
        self.ends.remove(&entry.end());
        (entry.due_at_ms, *entry.turn.lease_mut()) = (lease.due_at_ms(), lease);
        self.due.insert((entry.due_at_ms, number));
        self.ends.insert(entry.end());
    }

    /// Takes this very turn out, unless somebody has.
    pub fn take(&mut self, key: &ConversationKey, number: u64) -> Option<T> {
        let entries = self.turns.get_mut(key)?;
        let place = entries.iter().position(|entry| entry.number == number)?;
        let entry = entries.remove(place);
        self.ends.remove(&entry.end());
        let Entry { due_at_ms, turn, .. } = entry;
        if entries.is_empty() {
            self.turns.remove(key);
        }
        self.due.remove(&(due_at_ms, number));
        self.by_number.remove(&number);
        self.count -= 1;
        self.tokens -= u64::from(turn.tokens());
        Some(turn)
    }

    /// Takes some out, the oldest first.
    pub fn take_all(&mut self, of: impl Fn(&T) -> bool) -> Vec<T> {
        let of = self.entries().filter(|(_, entry)| of(&entry.turn));
        let mut these: Vec<_> = of.map(|(key, entry)| (entry.number, key.clone())).collect();
        these.sort_unstable_by_key(|(number, _)| *number);
        these.iter().filter_map(|(number, key)| self.take(key, *number)).collect()
    }

    fn take_oldest(&mut self) -> Option<T> {
        let (number, key) = self.by_number.first_key_value()?;
        let (number, key) = (*number, key.clone());
        self.take(&key, number)
    }

    /// Takes one of a worker out: the one that its policy gave the least time, which would end first.
    pub fn take_first_to_end(&mut self, holder: u64) -> Option<T> {
        let mut of_holder = self.ends.range((holder, 0, 0)..=(holder, u64::MAX, u64::MAX));
        let (.., number) = *of_holder.next()?;
        let key = self.by_number.get(&number)?.clone();
        self.take(&key, number)
    }

    /// In no order.
    fn entries(&self) -> impl Iterator<Item = (&ConversationKey, &Entry<T>)> {
        self.turns.iter().flat_map(|(key, entries)| entries.iter().map(move |entry| (key, entry)))
    }

    /// When something is to be done next.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.due.first().map(|(at_ms, _)| *at_ms)
    }

    /// How many turns there are, and how many tokens they hold.
    pub fn size(&self) -> (usize, u64) {
        (self.count, self.tokens)
    }
}
