//! Which of a conversation's kept turns a request goes on from. They come as [`super::table::Table::of`] gives them: each with its
//! number, the oldest first.

use std::cmp::Reverse;

use super::Turn;
use crate::history::chain::Chain;
use crate::history::guard::{Cut, Prompt, Refusal};

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

/// The turn that this history goes on from, of those whose tokens the engines compare: the one whose own history is the longest
/// part of it, of equals the newest. Where none is a part of it, the newest: the engines find out what is still true of it.
pub fn of_history<T: Turn>(turns: &[(u64, T)], chain: Option<&Chain>, now_ms: u64) -> Option<Found> {
    let place = |turn: &T| {
        let (mark, chain) = (turn.mark()?, chain?);
        chain.digests().iter().position(|digest| *digest == mark)
    };
    let turns = turns.iter().filter(|(_, turn)| turn.held().is_none());
    let (number, turn) = turns.max_by_key(|(number, turn)| (place(turn), *number))?;
    let tokens = if place(turn).is_some() { turn.tokens() } else { 0 };
    let left_ms = turn.left_ms(now_ms);
    Some(Found { number: *number, holder: turn.holder(), tokens, left_ms, cut: None })
}

/// The turn of which the longest part is proven to be of this prompt, of those that engines keep by themselves; of equals the one
/// with the least behind it, which another branch may want, then the newest. Else why there is none: what is said of the newest.
pub fn of_tokens<T: Turn>(turns: &[(u64, T)], prompt: &Prompt, now_ms: u64) -> Result<Found, Refusal> {
    let mut refusal = Refusal::NothingHeld;
    let mut best: Option<(Found, u32)> = None;
    for (number, turn) in turns {
        let Some(held) = turn.held() else { continue };
        let left_ms = turn.left_ms(now_ms);
        let cut = if left_ms > 0 { held.cut_for(prompt) } else { Err(Refusal::Expired) };
        match cut {
            Ok(cut) => {
                let (number, holder, tokens) = (*number, turn.holder(), cut.tokens());
                let found = Found { number, holder, tokens, left_ms, cut: Some(cut) };
                let rank = |found: &Found, held: u32| (found.tokens, Reverse(held), found.number);
                let is_better =
                    |(other, held): &(Found, u32)| rank(other, *held) < rank(&found, turn.tokens());
                if best.as_ref().is_none_or(is_better) {
                    best = Some((found, turn.tokens()));
                }
            }
            Err(reason) => refusal = reason,
        }
    }
    best.map(|(found, _)| found).ok_or(refusal)
}
