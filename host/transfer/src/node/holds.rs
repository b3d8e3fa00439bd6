//! Which holds there are, whose they are, and what is proven of them.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_engine_sdk::wire::{Extent, Proof, Rank, Rect, Refused, Tokens, TransferId};

use super::engines::Whole;
use super::words::Words;
use crate::protocol::Peer;

/// Proofs kept, of all holds together: 64 MiB, four thousand turns of 16k tokens. A hold that finds no room is kept
/// without, so no later prompt can have it.
pub const MAX_PROOFS: usize = 4 << 20;

/// Reports of ranks that overtook their engine's hold on another socket, of all engines: a handful each. The oldest give
/// way: progress is then told later, and a hold whose end was among them ends when its prefill's time is over.
pub const MAX_EARLY_REPORTS: usize = 4_096;

/// A hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBlocks {
    /// Whose.
    pub holder: Peer,
    /// Of which tokens.
    pub extent: Extent,
    /// Whether all of it is computed.
    pub is_filled: bool,
    /// Whether a later prompt can be proven to begin with it.
    pub has_proofs: bool,
    /// Whether another engine has spoken of it, be it to have it or to say that it need not.
    pub is_asked_for: bool,
}

/// What a rank has said of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    Ready(Rect),
    Filled,
}

/// What the host wants with a hold, whether or not it has come yet: its engine's word and the host's go different ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Nobody will read it.
    Release,
    /// It is to last so long from when it is filled, or from now.
    Keep { for_ms: u64 },
}

/// What of a report is for the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Ready(Rank, Rect),
    /// All ranks have all of it.
    Filled,
}

#[derive(Debug, Default)]
pub(super) struct Holds {
    bounds: Bounds,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
struct Bounds {
    proofs: usize,
    early_reports: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { proofs: MAX_PROOFS, early_reports: MAX_EARLY_REPORTS }
    }
}

#[derive(Debug, Default)]
struct State {
    holds: HashMap<TransferId, Entry>,
    early: VecDeque<(Peer, TransferId, Rank, Report)>,
    words: Words<TransferId, Word>,
    /// Holds that were asked for before they came.
    asked: Words<TransferId, ()>,
    /// Engines whose holds are taken in.
    live: HashSet<Peer>,
    proofs: usize,
    without_proofs: u64,
}

#[derive(Debug)]
struct Entry {
    held: HeldBlocks,
    whole: Rect,
    ranks: u32,
    filled: BTreeSet<Rank>,
    proofs: Arc<[Proof]>,
    /// Whether the exchange has been told of it. Until then nothing else of it may be told there.
    is_said: bool,
}

impl Holds {
    /// An engine is about to be attached: its holds are taken in until [`Self::end_all`].
    pub fn take_in(&self, peer: Peer) {
        self.lock().live.insert(peer);
    }

    /// Takes a hold in. The exchange is told of it next, and then [`Self::said`].
    ///
    /// # Errors
    /// If another hold has its id, or it has no cells.
    pub fn begin(
        &self,
        of: Whole,
        id: TransferId,
        extent: Extent,
        proofs: Vec<Proof>,
    ) -> Result<(), Refused> {
        let whole = extent.grid(of.layers).ok_or(Refused::Invalid)?.whole();
        let mut state = self.lock();
        let state = &mut *state;
        if !state.live.contains(&of.peer) {
            // It was detached while this was under way.
            return Err(Refused::NoSource);
        }
        if state.holds.contains_key(&id) {
            return Err(Refused::Used);
        }
        let has_room = state.proofs + proofs.len() <= self.bounds.proofs;
        state.without_proofs += u64::from(!has_room);
        let proofs: Arc<[Proof]> = if has_room { proofs.into() } else { Arc::default() };
        state.proofs += proofs.len();
        let (has_proofs, is_asked_for) = (!proofs.is_empty(), state.asked.take(id, |()| true).is_some());
        let held = HeldBlocks { holder: of.peer, extent, is_filled: false, has_proofs, is_asked_for };
        let filled = BTreeSet::new();
        state.holds.insert(id, Entry { held, whole, ranks: of.ranks, filled, proofs, is_said: false });
        Ok(())
    }

    /// The exchange has been told of a hold. What ranks have reported of it before, and what the host has said, as far as
    /// it can be followed now.
    pub fn said(&self, of: Peer, id: TransferId) -> (Vec<Progress>, Option<Word>) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(entry) = state.holds.get_mut(&id).filter(|entry| entry.held.holder == of) else {
            // The exchange has refused it, or its engine is gone.
            return (Vec::new(), None);
        };
        entry.is_said = true;
        let (its, others): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut state.early)
            .into_iter()
            .partition(|(from, about, ..)| (*from, *about) == (of, id));
        state.early = others;
        let progress = its.into_iter().map(|(_, _, rank, report)| entry.progress(rank, report)).collect();
        (progress, state.early_word(id, false))
    }

    /// A rank has something of a hold; `None` if the hold has not come yet, or is over.
    pub fn report(&self, from: Peer, id: TransferId, rank: Rank, report: Report) -> Option<Progress> {
        let mut state = self.lock();
        match state.holds.get_mut(&id) {
            Some(entry) if entry.held.holder != from => None,
            Some(entry) if entry.is_said => Some(entry.progress(rank, report)),
            // Of the rank that makes the holds, nothing comes before them.
            None if rank == Rank(0) => None,
            _ => {
                if state.early.len() >= self.bounds.early_reports {
                    state.early.pop_front();
                }
                state.early.push_back((from, id, rank, report));
                None
            }
        }
    }

    /// Whom the host's word is for, if it can be followed now; else it is kept until it can.
    pub fn word(&self, id: TransferId, word: Word) -> Option<Peer> {
        let mut state = self.lock();
        let state = &mut *state;
        match (state.holds.get(&id), word) {
            (Some(entry), Word::Release) if entry.is_said => return Some(entry.held.holder),
            (Some(entry), Word::Keep { .. }) if entry.held.is_filled => return Some(entry.held.holder),
            _ => {}
        }
        state.words.put(id, word);
        None
    }

    /// The exchange has been told that all of a hold is there. What the host said of it before.
    pub fn filled(&self, id: TransferId) -> Option<Word> {
        let mut state = self.lock();
        state.holds.get_mut(&id)?.held.is_filled = true;
        state.early_word(id, true)
    }

    /// Another engine has spoken of a hold, which may not have come yet.
    pub fn asked_for(&self, id: TransferId) {
        let mut state = self.lock();
        match state.holds.get_mut(&id) {
            Some(entry) => entry.held.is_asked_for = true,
            None => state.asked.put(id, ()),
        }
    }

    /// Which of the wanted tokens may come, by both sides' proofs.
    ///
    /// # Errors
    /// If none.
    pub fn proven(
        &self,
        id: TransferId,
        extent: Extent,
        wanted: Tokens,
        proofs: &[Proof],
    ) -> Result<Tokens, Refused> {
        let (theirs, held) = {
            let state = self.lock();
            let entry = state.holds.get(&id).ok_or(Refused::Unproven)?;
            (Arc::clone(&entry.proofs), entry.held.extent)
        };
        // Proofs count from the sequence's first token, in positions that both agree on.
        if held != extent || extent.first_token != 0 {
            return Err(Refused::Unproven);
        }
        let equal = theirs.iter().zip(proofs).take_while(|(one, other)| one == other).count();
        let proven = u32::try_from(equal).ok().and_then(|equal| equal.checked_mul(extent.position_tokens));
        let end = proven.unwrap_or(0).min(wanted.end);
        if end <= wanted.first { Err(Refused::Unproven) } else { Ok(Tokens { end, ..wanted }) }
    }

    pub fn get(&self, id: TransferId) -> Option<HeldBlocks> {
        self.lock().holds.get(&id).map(|entry| entry.held.clone())
    }

    /// A hold of this engine is over, or was not begun.
    pub fn end(&self, of: Peer, id: TransferId) {
        let mut state = self.lock();
        if state.holds.get(&id).is_some_and(|entry| entry.held.holder == of)
            && let Some(entry) = state.holds.remove(&id)
        {
            state.proofs -= entry.proofs.len();
        }
    }

    /// An engine is gone.
    pub fn end_all(&self, of: Peer) {
        let mut state = self.lock();
        let state = &mut *state;
        for (_, entry) in state.holds.extract_if(|_, entry| entry.held.holder == of) {
            state.proofs -= entry.proofs.len();
        }
        state.early.retain(|early| early.0 != of);
        state.live.remove(&of);
    }

    /// How many there are; how many were kept without proofs since there was no room.
    pub fn counts(&self) -> (usize, u64) {
        let state = self.lock();
        (state.holds.len(), state.without_proofs)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn early_word(&mut self, id: TransferId, is_filled: bool) -> Option<Word> {
        self.words.take(id, |word| is_filled || word == Word::Release)
    }
}

impl Entry {
    fn progress(&mut self, rank: Rank, report: Report) -> Progress {
        match report {
            Report::Ready(rect) => Progress::Ready(rank, rect),
            Report::Filled => {
                self.filled.insert(rank);
                let all = self.filled.len() >= self.ranks as usize;
                if all { Progress::Filled } else { Progress::Ready(rank, self.whole) }
            }
        }
    }
}

#[cfg(test)]
#[path = "holds_cases.rs"]
mod cases;
