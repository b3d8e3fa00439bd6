//! Which of a conversation's kept turns a request goes on from.

use sluice_core::history::chain::Chain;
use sluice_core::history::guard::{Cut, Prompt, Refusal};
use sluice_core::history::scope::ConversationKey;

use super::{Blocks, KeptTurn, KeptTurns};

/// A kept turn that a request may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// To take it by.
    pub number: u64,
    /// Whose, by worker.
    pub holder: u64,
    /// Leading tokens of the prompt that it holds: proven, or where the engines prove them, believed.
    pub tokens: u32,
    /// For how much longer, in milliseconds.
    pub left_ms: u64,
    /// The proven part, of what engines keep by themselves.
    pub cut: Option<Cut>,
}

impl KeptTurns {
    /// The turn that this history goes on from, of those whose KV this host moves: the one whose own history is the longest part of
    /// it, of equals the newest. Where none is a part of it, the newest: the engines find out what is still true of it.
    pub fn of_history(&self, key: &ConversationKey, chain: Option<&Chain>, now_ms: u64) -> Option<Found> {
        let place = |turn: &KeptTurn| {
            let (mark, chain) = (turn.mark?, chain?);
            chain.digests().iter().position(|digest| *digest == mark)
        };
        let turns = self.of(key).into_iter().filter(|(_, turn)| matches!(turn.blocks, Blocks::Hosted(_)));
        let (number, turn) = turns.max_by_key(|(number, turn)| (place(turn), *number))?;
        let left_ms = turn.lease.left_ms(now_ms);
        let tokens = if place(&turn).is_some() { turn.tokens } else { 0 };
        Some(Found { number, holder: turn.holder.id, tokens, left_ms, cut: None })
    }
}

/// The turn of which the longest part is proven to be of this prompt, of those that engines keep by themselves; of equals the one
/// with the least behind it, which another branch may want, then the newest. Else why there is none: what is said of the newest.
pub fn of_tokens(turns: &[(u64, KeptTurn)], prompt: &Prompt, now_ms: u64) -> Result<Found, Refusal> {
    let mut refusal = Refusal::NothingHeld;
    let mut best: Option<(Found, u32)> = None;
    for (number, turn) in turns {
        let Blocks::Engine(engine) = &turn.blocks else { continue };
        let left_ms = turn.lease.left_ms(now_ms).min(engine.place.usable_until_ms.saturating_sub(now_ms));
        let cut = if left_ms > 0 { engine.held.cut_for(prompt) } else { Err(Refusal::Expired) };
        match cut {
            Ok(cut) => {
                let found = Found {
                    number: *number,
                    holder: turn.holder.id,
                    tokens: cut.tokens(),
                    left_ms,
                    cut: Some(cut),
                };
                let rank = |found: &Found, held: u32| (found.tokens, std::cmp::Reverse(held), found.number);
                let is_better = |(other, held): &(Found, u32)| rank(other, *held) < rank(&found, turn.tokens);
                if best.as_ref().is_none_or(is_better) {
                    best = Some((found, turn.tokens));
                }
            }
            Err(reason) => refusal = reason,
        }
    }
    best.map(|(found, _)| found).ok_or(refusal)
}
