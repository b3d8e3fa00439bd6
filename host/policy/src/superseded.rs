//! The policies that newer versions replaced, for as long as their requests may still ask them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use crate::limits::LIVE_GENERATIONS_MAX;
use crate::policy::Policy;

/// What each of the last swaps replaced, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Superseded {
    swaps: VecDeque<Vec<Weak<Policy>>>,
}

impl Superseded {
    /// Notes a swap from `old` to `new`: what it replaced keeps no instance, and what was replaced too many
    /// swaps ago answers no more.
    pub(crate) fn swap(&mut self, old: &BTreeMap<String, Arc<Policy>>, new: &BTreeMap<String, Arc<Policy>>) {
        let stays =
            |name: &str, policy: &Arc<Policy>| new.get(name).is_some_and(|new| Arc::ptr_eq(new, policy));
        let replaced: Vec<_> =
            old.iter().filter(|(name, policy)| !stays(name, policy)).map(|(_, policy)| policy).collect();
        replaced.iter().for_each(|policy| policy.retire());
        self.swaps.push_back(replaced.into_iter().map(Arc::downgrade).collect());
        // The one in force is the one more.
        while self.swaps.len() >= LIVE_GENERATIONS_MAX {
            let expired = self.swaps.pop_front().unwrap_or_default();
            expired.iter().filter_map(Weak::upgrade).for_each(|policy| policy.expire());
        }
    }
}
