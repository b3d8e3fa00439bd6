//! Sessions in the order of their last turns, with what they count for.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Bound;

use sluice_core::history::lines::MARKS_AT_MOST;
use sluice_core::history::scope::{Conversation, ConversationKey};

use super::memory::Entry;
use super::store::{Size, Walk};

/// Which end of a turn: numbers rise, and none comes twice. Never 0, so that none at all takes no room of its own.
pub(super) type Stamp = NonZeroU64;

/// What a session counts for, in bytes: its entry in the map, which is 5/8 full on average as it grows by doubling; its place in the
/// order, in tree nodes that are about half full; its name, or the marks that it is found by. Held against the process'
/// memory by a test.
pub(super) fn bytes(key: &ConversationKey) -> usize {
    const ENTRY: usize = (size_of::<(ConversationKey, Entry)>() + 1) * 8 / 5;
    const PLACE: usize = (size_of::<Stamp>() + size_of::<Idle>()) * 2;
    /// Of a shared text: two counts, and the allocator's own word and rounding.
    const TEXT: usize = 32;
    /// A table of marks and one of lines, each entry with a key and a line's name, and the order that lines have of their own.
    const LINE: usize =
        (2 * 16 + 1) * 8 / 5 * MARKS_AT_MOST + (16 + 32 + 1) * 8 / 5 + (8 + 16) * 2 + 16 * MARKS_AT_MOST;
    let own = match &key.conversation {
        Conversation::Named(name) => TEXT + name.len(),
        Conversation::Derived(_) => LINE,
    };
    ENTRY + PLACE + own
}

#[derive(Debug)]
pub(super) struct Idle {
    since_ms: u64,
    key: ConversationKey,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Order {
    by_stamp: BTreeMap<Stamp, Idle>,
    last: Option<Stamp>,
    bytes: usize,
}

impl Order {
    /// A turn ended: its session goes to the end. `before` is where it stood, if it did.
    pub fn put(&mut self, before: Option<Stamp>, key: ConversationKey, since_ms: u64) -> Stamp {
        if let Some(before) = before {
            self.take(before);
        }
        let stamp = self.last.map_or(Stamp::MIN, |last| last.saturating_add(1));
        self.last = Some(stamp);
        self.bytes += bytes(&key);
        self.by_stamp.insert(stamp, Idle { since_ms, key });
        stamp
    }

    /// Takes it out, if it is there.
    pub fn take(&mut self, stamp: Stamp) {
        if let Some(gone) = self.by_stamp.remove(&stamp) {
            self.bytes -= bytes(&gone.key);
        }
    }

    /// The longest idle one, and since when.
    pub fn first(&self) -> Option<(Stamp, u64, &ConversationKey)> {
        self.by_stamp.first_key_value().map(|(stamp, idle)| (*stamp, idle.since_ms, &idle.key))
    }

    /// The next ones of a walk.
    pub fn batch(&self, walk: &mut Walk, at_most: usize) -> Vec<ConversationKey> {
        let past = walk.stamp.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut up, mut down);
        let next: &mut dyn Iterator<Item = _> = if walk.newest_first {
            down = self.by_stamp.range((Bound::Unbounded, past)).rev();
            &mut down
        } else {
            up = self.by_stamp.range((past, Bound::Unbounded));
            &mut up
        };
        let mut keys = Vec::new();
        for (stamp, idle) in next.take(at_most) {
            walk.stamp = Some(*stamp);
            keys.push(idle.key.clone());
        }
        keys
    }

    pub fn size(&self) -> Size {
        Size { sessions: self.by_stamp.len(), bytes: self.bytes }
    }
}
