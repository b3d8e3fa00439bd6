//! What is remembered of ids that are over.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::limits::CLOSED_KEEP_MS;
use super::message::End;
use super::names::{Attempt, Epoch, TransferId};
use super::names::{HoldEnd, Reason};

/// Up to which epoch ids are over, and how they ended.
///
/// A registration that comes late, after the abort of its epoch, must not begin to write: its blocks may be somebody
/// else's by then. So an epoch that was answered as over stays over. When there is no room to remember that, nothing
/// is answered at all; the consumer then finds its own way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    records: BTreeMap<TransferId, Record>,
    by_time: BTreeSet<(u64, TransferId)>,
    limit: usize,
    /// An end that vouched for nothing was forgotten: what is not known here need not be over.
    forgot_unsure: bool,
}

/// What is known of one id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The highest epoch that is over, and how it ended.
    pub last: Option<(Epoch, End)>,
    /// How the hold ended, if there was one and it has.
    pub hold: Option<HoldEnd>,
    /// Some epoch of it ended without anybody vouching for what was under way.
    unsure: bool,
    forget_at_ms: u64,
}

impl Record {
    /// Whether anything is known.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.last.is_some() || self.hold.is_some()
    }
}

impl Closed {
    /// Nothing, with room for `limit` ids.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { records: BTreeMap::new(), by_time: BTreeSet::new(), limit, forgot_unsure: false }
    }

    /// How many ids are remembered.
    #[must_use]
    pub fn count(&self) -> usize {
        self.records.len()
    }

    /// Whether one more id than is now reserved elsewhere can be remembered.
    #[must_use]
    pub fn has_room(&self, reserved: usize) -> bool {
        self.records.len() + reserved < self.limit
    }

    /// What is known of an id.
    #[must_use]
    pub fn get(&self, id: TransferId) -> Record {
        self.records.get(&id).copied().unwrap_or_default()
    }

    /// How an attempt is over, if it is: by its own end, or because a later one is.
    #[must_use]
    pub fn end_of(&self, attempt: Attempt) -> Option<End> {
        let (epoch, end) = self.get(attempt.id).last?;
        match epoch.cmp(&attempt.epoch) {
            Ordering::Less => None,
            Ordering::Equal => Some(end),
            Ordering::Greater => Some(self.superseded(attempt.id)),
        }
    }

    /// The end of an epoch below a later one, whose own end is not remembered: as bad as any epoch's of that id.
    #[must_use]
    pub fn superseded(&self, id: TransferId) -> End {
        if self.get(id).unsure { End::Unsure(Reason::Superseded) } else { End::Aborted(Reason::Superseded) }
    }

    /// The end of an attempt of which nothing is known.
    #[must_use]
    pub fn unknown(&self, reason: Reason) -> End {
        if self.forgot_unsure { End::Unsure(reason) } else { End::Aborted(reason) }
    }

    /// An attempt is over.
    pub fn attempt(&mut self, attempt: Attempt, end: End, now_ms: u64) {
        let record = self.touch(attempt.id, now_ms);
        record.unsure |= matches!(end, End::Unsure(_));
        if record.last.is_none_or(|(epoch, _)| epoch < attempt.epoch) {
            record.last = Some((attempt.epoch, end));
        }
    }

    /// A hold is over.
    pub fn hold(&mut self, id: TransferId, end: HoldEnd, now_ms: u64) {
        self.touch(id, now_ms).hold.get_or_insert(end);
    }

    /// Forgets what is old, unless its hold lives.
    pub fn forget(&mut self, now_ms: u64, lives: impl Fn(TransferId) -> bool) {
        while let Some((at_ms, id)) = self.by_time.first().copied() {
            if at_ms > now_ms {
                break;
            }
            if lives(id) {
                self.touch(id, now_ms);
            } else {
                self.by_time.remove(&(at_ms, id));
                let record = self.records.remove(&id);
                self.forgot_unsure |= record.is_some_and(|record| record.unsure);
            }
        }
    }

    /// When the next is to be forgotten.
    #[must_use]
    pub fn due_ms(&self) -> Option<u64> {
        self.by_time.first().map(|(at_ms, _)| *at_ms)
    }

    fn touch(&mut self, id: TransferId, now_ms: u64) -> &mut Record {
        let record = self.records.entry(id).or_default();
        self.by_time.remove(&(record.forget_at_ms, id));
        record.forget_at_ms = now_ms + CLOSED_KEEP_MS;
        self.by_time.insert((record.forget_at_ms, id));
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Epoch, TransferId};

    const ID: TransferId = TransferId(1);

    fn at(epoch: u32) -> Attempt {
        Attempt { id: ID, epoch: Epoch(epoch) }
    }

    #[test]
    fn nobody_is_vouched_for_by_a_later_epochs_end() {
        let (clean, unsure) = (End::Aborted(Reason::Cancelled), End::Unsure(Reason::Fabric));
        let cases = [
            (vec![(1, clean)], 1, Some(clean)),
            (vec![(1, clean)], 2, None),
            (vec![(1, clean), (2, clean)], 1, Some(End::Aborted(Reason::Superseded))),
            (vec![(1, unsure), (2, clean)], 1, Some(End::Unsure(Reason::Superseded))),
            (vec![(2, clean), (1, unsure)], 1, Some(End::Unsure(Reason::Superseded))),
            (vec![(1, unsure), (2, clean)], 2, Some(clean)),
        ];
        for (ends, asked, expected) in cases {
            let mut closed = Closed::new(4);
            ends.iter().for_each(|(epoch, end)| closed.attempt(at(*epoch), *end, 0));
            assert_eq!(closed.end_of(at(asked)), expected, "{ends:?}");
        }
    }

    #[test]
    fn what_is_forgotten_is_not_vouched_for_if_it_was_unsure() {
        let ends = [
            (End::Aborted(Reason::Fabric), End::Aborted(Reason::Unknown)),
            (End::Unsure(Reason::Fabric), End::Unsure(Reason::Unknown)),
        ];
        for (end, answer) in ends {
            let mut closed = Closed::new(4);
            closed.attempt(at(1), end, 0);
            closed.forget(CLOSED_KEEP_MS, |_| true);
            assert_eq!(closed.end_of(at(1)), Some(end), "its hold lives");
            closed.forget(2 * CLOSED_KEEP_MS, |_| false);
            assert_eq!((closed.count(), closed.end_of(at(1))), (0, None));
            assert_eq!(closed.unknown(Reason::Unknown), answer);
        }
    }
}
