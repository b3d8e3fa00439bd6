//! What is known of all conversations, as plain data that outlives this host's process.
//!
//! A hold is used once, and what was taken after the data was written is not in it. So holds come back only from data that was
//! written at the end, when nothing is taken any more ([`SavedAt::End`]), and that is read once: whoever reads it has
//! it removed before the first hold is taken. Of data that was written while this host went on, lines come back, and the holds as
//! [`Ended::Uncertain`]: their holders may be told to let go of them, which does no harm twice, and nobody reads them.
//!
//! This host's clock begins anew with its process, so deadlines are saved as what is left of them.

use serde::{Deserialize, Serialize};

use super::Digest;
use super::branches::{Branches, Ended, Epoch, Hold};
use super::lines::Lines;
use super::scope::ConversationKey;

/// When the data was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SavedAt {
    /// This host went on, and may have used any hold since.
    Running,
    /// Nothing was taken after it.
    End,
}

/// A hold that was saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedHold<H> {
    /// Whose.
    pub key: ConversationKey,
    /// The hold; its deadline means nothing.
    pub hold: Hold<H>,
    /// What was left of it.
    pub left_ms: u64,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved<H> {
    /// When it was written.
    pub at: SavedAt,
    /// See [`Lines::save`].
    pub lines: Vec<(Digest, Vec<Digest>)>,
    /// In the order of their epochs.
    pub holds: Vec<SavedHold<H>>,
    /// No epoch was given out from here on.
    pub next_epoch: Epoch,
}

impl<H: Clone> Saved<H> {
    /// What there is at a time. Expired holds are left out: they end here.
    pub fn of<'a>(
        at: SavedAt,
        lines: &Lines,
        branches: impl IntoIterator<Item = (&'a ConversationKey, &'a Branches<H>)>,
        next_epoch: Epoch,
        now_ms: u64,
    ) -> Self
    where
        H: 'a,
    {
        let holds = branches.into_iter().flat_map(|(key, branches)| {
            let usable = branches.holds().iter().filter(|hold| hold.is_usable(now_ms));
            usable.map(|hold| SavedHold {
                key: key.clone(),
                hold: hold.clone(),
                left_ms: hold.usable_until_ms - now_ms,
            })
        });
        let mut holds: Vec<_> = holds.collect();
        holds.sort_by_key(|saved| saved.hold.epoch);
        Self { at, lines: lines.save(), holds, next_epoch }
    }
}

/// What came back.
#[derive(Debug)]
pub struct Restored<H> {
    /// Which histories are known.
    pub lines: Lines,
    /// Usable holds, to be put into their conversations' [`Branches`] in this order.
    pub holds: Vec<(ConversationKey, Hold<H>)>,
    /// Holds that are not used any more.
    pub ended: Vec<(ConversationKey, Hold<H>, Ended)>,
    /// To go on with.
    pub next_epoch: Epoch,
}

/// Brings it back. `away_ms` is how long ago the data was written, at most: too much costs reuse, too little a wrong answer, so a
/// clock that may have stepped is no measure of it.
pub fn restore<H>(saved: Saved<H>, lines_at_most: usize, now_ms: u64, away_ms: u64) -> Restored<H> {
    let lines = Lines::restore(lines_at_most, &saved.lines);
    let (mut holds, mut ended, mut next_epoch) = (Vec::new(), Vec::new(), saved.next_epoch);
    for SavedHold { key, mut hold, left_ms } in saved.holds {
        next_epoch = next_epoch.max(Epoch(hold.epoch.0.saturating_add(1)));
        let left_ms = left_ms.saturating_sub(away_ms);
        hold.usable_until_ms = now_ms.saturating_add(left_ms);
        match saved.at {
            SavedAt::Running => ended.push((key, hold, Ended::Uncertain)),
            SavedAt::End if left_ms == 0 => ended.push((key, hold, Ended::Expired)),
            SavedAt::End => holds.push((key, hold)),
        }
    }
    Restored { lines, holds, ended, next_epoch }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use super::*;
    use crate::history::branches::Holder;
    use crate::history::guard::Held;
    use crate::history::scope::Scope;
    use crate::history::tokens::Sequence;

    fn hold(epoch: u64, usable_until_ms: u64) -> Hold<u64> {
        let sequence = Sequence::of_ids(&[epoch as u32; 4]);
        Hold {
            handle: epoch,
            held: Held::of_sequence(sequence, NonZeroU32::MIN),
            holder: Holder { worker: 1, engine: "e".into() },
            usable_until_ms,
            epoch: Epoch(epoch),
        }
    }

    fn saved(at: SavedAt) -> Saved<u64> {
        let scope = Scope {
            tenant: "t".to_owned(),
            model: "m".to_owned(),
            adapter: None,
            salt: None,
            endpoint: Cow::Borrowed("/v1/completions"),
        };
        let key = ConversationKey::named(&Arc::new(scope), "c");
        let mut branches = Branches::default();
        for hold in [hold(1, 9_000), hold(2, 6_000), hold(3, 5_000)] {
            branches.put(hold, 0);
        }
        Saved::of(at, &Lines::new(1), [(&key, &branches)], Epoch(4), 5_000)
    }

    #[test]
    fn holds_come_back_with_what_is_left_of_their_time() {
        let restored = restore(saved(SavedAt::End), 1, 100, 1_000);
        let of = |hold: &Hold<u64>| (hold.epoch.0, hold.usable_until_ms);
        assert_eq!(restored.holds.iter().map(|(_, hold)| of(hold)).collect::<Vec<_>>(), [(1, 3_100)]);
        let ended: Vec<_> = restored.ended.iter().map(|(_, hold, why)| (hold.epoch.0, *why)).collect();
        assert_eq!((ended, restored.next_epoch), (vec![(2, Ended::Expired)], Epoch(4)));
    }

    #[test]
    fn holds_that_may_have_been_used_do_not_come_back() {
        let restored = restore(saved(SavedAt::Running), 1, 100, 0);
        assert!(restored.holds.is_empty());
        assert!(
            restored.ended.iter().all(|(_, _, why)| *why == Ended::Uncertain) && restored.ended.len() == 2
        );
    }

    #[test]
    fn epochs_go_on_even_where_the_data_is_wrong() {
        let restored = restore(Saved { next_epoch: Epoch(0), ..saved(SavedAt::End) }, 1, 0, 0);
        assert_eq!(restored.next_epoch, Epoch(3));
    }
}
