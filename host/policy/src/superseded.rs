//! The policies that newer versions replaced, for as long as their requests may still ask them.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::generation::Generation;
use crate::limits::LIVE_GENERATIONS_MAX;
use crate::policy::Policy;

/// What each of the last swaps replaced, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Superseded {
    swaps: VecDeque<Vec<Weak<Policy>>>,
}

impl Superseded {
    /// Notes a swap from `old` to `new`: what it replaced keeps no instance, and what was replaced too many
    /// swaps ago answers no more, unless it is kept to take over or decides again.
    pub(crate) fn swap(&mut self, old: &Generation, new: &Generation) {
        let stays =
            |policy: &Arc<Policy>| new.policy(policy.name()).is_some_and(|new| Arc::ptr_eq(new, policy));
        let replaced: Vec<_> = old.policies().filter(|policy| !stays(policy)).collect();
        replaced.iter().for_each(|policy| policy.retire());
        let mut replaced: Vec<_> = replaced.into_iter().map(Arc::downgrade).collect();
        // The one in force is the one more.
        while self.swaps.len() + 1 >= LIVE_GENERATIONS_MAX {
            for policy in self.swaps.pop_front().unwrap_or_default().iter().filter_map(Weak::upgrade) {
                let is_it = |other: &Arc<Policy>| Arc::ptr_eq(other, &policy);
                let weak = Arc::downgrade(&policy);
                let noted_again =
                    self.swaps.iter().flatten().chain(&replaced).any(|other| other.ptr_eq(&weak));
                // One that decides again is noted when it is replaced again.
                if noted_again || new.policies().any(is_it) {
                    continue;
                }
                if new.in_reserve().any(is_it) {
                    replaced.push(weak);
                } else {
                    policy.expire();
                }
            }
        }
        self.swaps.push_back(replaced);
    }
}
