//! What is due when.

use std::collections::{BTreeMap, BTreeSet};

/// One deadline per key, in order. Renewing moves the entry, so that what stands first is what is due first: a late
/// renewal of one entry never hides the expiry of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlines<K> {
    order: BTreeSet<(u64, K)>,
    at_ms: BTreeMap<K, u64>,
}

impl<K: Copy + Ord> Default for Deadlines<K> {
    fn default() -> Self {
        Self { order: BTreeSet::new(), at_ms: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> Deadlines<K> {
    /// Sets, moves or (with `None`) takes away the deadline of `key`.
    pub fn set(&mut self, key: K, at_ms: Option<u64>) {
        let before = match at_ms {
            Some(at_ms) => self.at_ms.insert(key, at_ms),
            None => self.at_ms.remove(&key),
        };
        if before == at_ms {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, key));
        }
        if let Some(at_ms) = at_ms {
            self.order.insert((at_ms, key));
        }
    }

    /// Every key that is due at `now_ms`. They stay until they are set anew.
    #[must_use]
    pub fn due(&self, now_ms: u64) -> Vec<K> {
        self.order.iter().take_while(|(at_ms, _)| *at_ms <= now_ms).map(|(_, key)| *key).collect()
    }

    /// When the next is due.
    #[must_use]
    pub fn next_ms(&self) -> Option<u64> {
        self.order.first().map(|(at_ms, _)| *at_ms)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_entry_that_is_due_is_found_whatever_was_renewed(
            moves in proptest::collection::vec((0..12u8, proptest::option::of(0..100u64)), 0..60),
            now in 0..100u64,
        ) {
            let mut deadlines = Deadlines::default();
            let mut naive = BTreeMap::new();
            for (key, at) in moves {
                deadlines.set(key, at);
                match at {
                    Some(at) => naive.insert(key, at),
                    None => naive.remove(&key),
                };
            }
            let mut expected: Vec<u8> = naive.iter().filter(|(_, at)| **at <= now).map(|(key, _)| *key).collect();
            let mut due = deadlines.due(now);
            due.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(due, expected);
            prop_assert_eq!(deadlines.next_ms(), naive.values().min().copied());
            prop_assert_eq!(deadlines.len(), naive.len());
            prop_assert_eq!(deadlines.order.len(), deadlines.at_ms.len());
        }
    }
}
