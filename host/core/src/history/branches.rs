//! A conversation's few holds, each of which is used at most once.
//!
//! Asking again, or two continuations of one history, leave several holds that all may be continued. A request takes the one
//! with the longest part proven. Whoever looks and whoever takes may not be alone, so what was looked at is taken by its
//! epoch: of two who race, one gets it and the other finds it gone.
//!
//! Times are milliseconds of the caller's clock, one that does not step. A holder's own clock is another: deadlines are counted here,
//! with a margin, from when the answer came.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::guard::{Cut, Held, Prompt, Refusal};

/// Holds of a conversation. Each keeps blocks from an engine's decoding; more than a few branches are not gone on with.
pub const HOLDS_AT_MOST: usize = 4;

/// One use of one hold. Given out by the store, each once and rising: a number that a conversation counted by itself would come again
/// after it was dropped and made anew, and somebody who still had the old one would take another hold than the one proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// Who holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// By [`crate::facts::FleetColumns::id`].
    pub worker: u64,
    /// The engine's own id, another after a restart. Blocks of an engine that is gone are somebody else's.
    pub engine: Arc<str>,
}

/// KV that a holder keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold<H> {
    /// What the holder knows it by. Opaque here.
    pub handle: H,
    /// What it is of.
    pub held: Held,
    /// Whose.
    pub holder: Holder,
    /// From then on it is not used: see [`usable_until_ms`].
    pub usable_until_ms: u64,
    /// Its one use.
    pub epoch: Epoch,
}

impl<H> Hold<H> {
    /// Whether it may still be used. To be asked again right before it is sent.
    pub fn is_usable(&self, now_ms: u64) -> bool {
        now_ms < self.usable_until_ms
    }
}

/// The deadline of KV that is held for `held_for_ms` from when its answer came, at the latest, as far as can be told here. The margin is
/// for what is not: the answer's way, the other clock's pace, the way of the request that uses it.
pub fn usable_until_ms(answered_at_ms: u64, held_for_ms: u64, margin_ms: u64) -> u64 {
    answered_at_ms.saturating_add(held_for_ms.saturating_sub(margin_ms))
}

/// Why a hold ended without being used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Its deadline came.
    Expired,
    /// A newer one holds all that it does.
    Superseded,
    /// It was the oldest of too many.
    Crowded,
    /// Its engine is gone.
    Lost,
    /// Its conversation, or its worker's part in it, is over.
    Dropped,
    /// This host cannot tell whether it was used, see [`super::saved`].
    Uncertain,
}

/// The best hold for a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Best {
    /// To take it by.
    pub epoch: Epoch,
    /// By [`crate::facts::FleetColumns::id`].
    pub worker: u64,
    /// The part to be used.
    pub cut: Cut,
    /// For how much longer.
    pub usable_until_ms: u64,
}

/// The holds of one conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branches<H> {
    holds: Vec<Hold<H>>,
}

impl<H> Default for Branches<H> {
    fn default() -> Self {
        Self { holds: Vec::new() }
    }
}

impl<H> Branches<H> {
    /// Keeps a hold, and returns what ends for it: first what is expired, then what the newcomer holds as well, then
    /// the oldest (by epoch) while they are too many.
    pub fn put(&mut self, hold: Hold<H>, now_ms: u64) -> Vec<(Hold<H>, Ended)> {
        let mut ended = self.expire(now_ms);
        let superseded = self.holds.extract_if(.., |other| other.held.is_in(&hold.held));
        ended.extend(superseded.map(|other| (other, Ended::Superseded)));
        if self.holds.len() == HOLDS_AT_MOST
            && let Some(oldest) = (0..self.holds.len()).min_by_key(|at| self.holds[*at].epoch)
        {
            ended.push((self.holds.swap_remove(oldest), Ended::Crowded));
        }
        self.holds.push(hold);
        ended
    }

    /// The usable hold with the longest part proven; of equals the one with the least behind it, which another branch may want, then
    /// the newest. Else why there is none: what is said of the newest hold.
    pub fn best(&self, prompt: &Prompt, now_ms: u64) -> Result<Best, Refusal> {
        let mut refusal = (None, Refusal::NothingHeld);
        let mut best: Option<(&Hold<H>, Cut)> = None;
        for hold in &self.holds {
            let cut = if hold.is_usable(now_ms) { hold.held.cut_for(prompt) } else { Err(Refusal::Expired) };
            match cut {
                Ok(cut) => {
                    let rank = |hold: &Hold<H>, cut: Cut| {
                        (cut.tokens(), std::cmp::Reverse(hold.held.sequence().tokens()), hold.epoch)
                    };
                    if best.is_none_or(|(other, others)| rank(other, others) < rank(hold, cut)) {
                        best = Some((hold, cut));
                    }
                }
                Err(reason) if refusal.0 < Some(hold.epoch) => refusal = (Some(hold.epoch), reason),
                Err(_) => {}
            }
        }
        let (hold, cut) = best.ok_or(refusal.1)?;
        let (epoch, worker, usable_until_ms) = (hold.epoch, hold.holder.worker, hold.usable_until_ms);
        Ok(Best { epoch, worker, cut, usable_until_ms })
    }

    /// Takes a hold out, for its one use. One that expired stays until [`Self::expire`].
    pub fn take(&mut self, epoch: Epoch, now_ms: u64) -> Result<Hold<H>, Refusal> {
        let at = self.holds.iter().position(|hold| hold.epoch == epoch).ok_or(Refusal::Gone)?;
        if self.holds[at].is_usable(now_ms) { Ok(self.holds.swap_remove(at)) } else { Err(Refusal::Expired) }
    }

    /// Its holder holds on until another time. Whether there is such a hold, not expired: what was once over stays over.
    pub fn renew(&mut self, epoch: Epoch, usable_until_ms: u64, now_ms: u64) -> bool {
        let hold = self.holds.iter_mut().find(|hold| hold.epoch == epoch && hold.is_usable(now_ms));
        hold.map(|hold| hold.usable_until_ms = usable_until_ms).is_some()
    }

    /// Takes out what expired.
    pub fn expire(&mut self, now_ms: u64) -> Vec<(Hold<H>, Ended)> {
        self.end(Ended::Expired, |hold| !hold.is_usable(now_ms))
    }

    /// A worker's engine has this id now: takes out what one before it held.
    pub fn engine_is(&mut self, worker: u64, engine: &str) -> Vec<(Hold<H>, Ended)> {
        self.end(Ended::Lost, |hold| hold.holder.worker == worker && &*hold.holder.engine != engine)
    }

    /// Takes out what a worker holds, or all of it.
    pub fn drop_of(&mut self, worker: Option<u64>) -> Vec<(Hold<H>, Ended)> {
        self.end(Ended::Dropped, |hold| worker.is_none_or(|worker| hold.holder.worker == worker))
    }

    /// When the first of them expires.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.holds.iter().map(|hold| hold.usable_until_ms).min()
    }

    /// All of them, in no order.
    pub fn holds(&self) -> &[Hold<H>] {
        &self.holds
    }

    /// Whether there is none: the conversation's entry can go.
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    fn end(&mut self, why: Ended, is_over: impl Fn(&Hold<H>) -> bool) -> Vec<(Hold<H>, Ended)> {
        self.holds.extract_if(.., |hold| is_over(hold)).map(|hold| (hold, why)).collect()
    }
}

#[cfg(test)]
mod tests;
