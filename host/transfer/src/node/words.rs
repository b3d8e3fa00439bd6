//! The host's words about what has not come yet, a bounded number of them.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Words kept, of a kind: some seconds of a busy host. The oldest are forgotten; what they were about ends by its own
/// deadline then.
pub const MAX_EARLY_WORDS: usize = 8_192;

/// The last word about each.
#[derive(Debug)]
pub(super) struct Words<K, W> {
    words: HashMap<K, W>,
    /// In the order in which they came.
    order: VecDeque<K>,
}

impl<K, W> Default for Words<K, W> {
    fn default() -> Self {
        Self { words: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Copy + Eq + Hash, W: Copy> Words<K, W> {
    /// Keeps a word, in place of the one before it.
    pub fn put(&mut self, about: K, word: W) {
        if self.words.insert(about, word).is_none() {
            self.order.push_back(about);
        }
        while self.words.len() > MAX_EARLY_WORDS {
            let Some(oldest) = self.order.pop_front() else { break };
            self.words.remove(&oldest);
        }
    }

    /// Takes the word, if there is one like this.
    pub fn take(&mut self, about: K, is_it: impl Fn(W) -> bool) -> Option<W> {
        let word = self.words.get(&about).copied().filter(|word| is_it(*word))?;
        self.words.remove(&about);
        self.order.retain(|other| *other != about);
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_kept_and_the_oldest_go() {
        let mut words = Words::default();
        for about in 0..MAX_EARLY_WORDS as u32 + 3 {
            words.put(about, 'a');
            words.put(about, 'b');
        }
        assert_eq!((words.words.len(), words.order.len()), (MAX_EARLY_WORDS, MAX_EARLY_WORDS));
        assert_eq!(words.take(2, |_| true), None);
        assert_eq!(words.take(3, |word| word == 'a'), None);
        assert_eq!((words.take(3, |_| true), words.take(3, |_| true)), (Some('b'), None));
        assert_eq!((words.words.len(), words.order.len()), (MAX_EARLY_WORDS - 1, MAX_EARLY_WORDS - 1));
    }
}
