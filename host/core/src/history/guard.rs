//! What of a holder's KV may be used for a prompt: the part that is proven to be of the same tokens.
//!
//! Engines take a handle at its word, and answer for its tokens whatever the prompt was. So a handle is cut to what is
//! proven before it is sent, its count of tokens and its block ids both: an engine that has a part of the prompt itself takes as
//! many ids from the list's end as it lacks, so that an id too many shifts them all.

use std::num::NonZeroU32;

use super::tokens::Sequence;

/// Why held KV is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The conversation has no hold.
    #[error("nothing is held")]
    NothingHeld,
    /// Somebody else took the hold, or it ended.
    #[error("the hold was taken, or ended")]
    Gone,
    /// Past its deadline.
    #[error("the hold is past its deadline")]
    Expired,
    /// The engine did not say which tokens it holds.
    #[error("the ids of the held tokens are not known")]
    NoTokenIds,
    /// One list of blocks for each group, of which some are clipped: which token is where is not known.
    #[error("the KV is in {groups} groups of blocks; only one can be cut")]
    SeveralKvGroups {
        /// How many.
        groups: usize,
    },
    /// Two images have the same tokens.
    #[error("media are in the history, which tokens do not tell apart")]
    Media,
    /// Too little to be moved.
    #[error("{proven_tokens} tokens are proven, less than a block of {block_tokens}")]
    LessThanABlock {
        /// Proven to be alike.
        proven_tokens: u32,
        /// Of the holder.
        block_tokens: u32,
    },
    /// The engine's figures do not belong together.
    #[error("the handle is of {said} {what}, and {expected} were expected")]
    CountMismatch {
        /// Of what.
        what: Counted,
        /// By the handle.
        said: usize,
        /// By the tokens.
        expected: usize,
    },
    /// Proofs of different positions say nothing of each other.
    #[error("the proofs are of positions of {one} and of {other} tokens")]
    PositionsDiffer {
        /// Tokens.
        one: u32,
        /// Tokens.
        other: u32,
    },
}

impl Refusal {
    /// For metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NothingHeld => "nothing-held",
            Self::Gone => "gone",
            Self::Expired => "expired",
            Self::NoTokenIds => "no-token-ids",
            Self::SeveralKvGroups { .. } => "several-kv-groups",
            Self::Media => "media",
            Self::LessThanABlock { .. } => "less-than-a-block",
            Self::CountMismatch { .. } => "count-mismatch",
            Self::PositionsDiffer { .. } => "positions-differ",
        }
    }
}

/// What an engine counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Tokens held.
    Tokens,
    /// Ids of the blocks that they are in.
    Blocks,
}

impl std::fmt::Display for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tokens => "tokens",
            Self::Blocks => "blocks",
        })
    }
}

/// A turn, as its decode engine told of it.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// Of the prompt as the engine read it.
    pub prompt_ids: Option<&'a [u32]>,
    /// Of the answer, all that were generated.
    pub output_ids: Option<&'a [u32]>,
    /// Tokens held, by the handle.
    pub tokens: u32,
    /// Block ids in each KV group, by the handle.
    pub blocks_of_groups: &'a [usize],
    /// Tokens of a block.
    pub block_tokens: NonZeroU32,
    /// Whether the history has media in it ([`super::chain::Chain::has_media`]).
    pub has_media: bool,
}

impl Told<'_> {
    fn counts(&self) -> Counts<'_> {
        Counts {
            prompt_ids: self.prompt_ids.map(<[u32]>::len),
            output_ids: self.output_ids.map(<[u32]>::len),
            tokens: self.tokens,
            blocks_of_groups: self.blocks_of_groups,
            block_tokens: self.block_tokens,
            has_media: self.has_media,
        }
    }
}

/// The counts of a turn, by which it is seen at no cost whether anything could be proven of it: see [`Told`].
#[derive(Debug, Clone, Copy)]
pub struct Counts<'a> {
    /// How many ids of the prompt were told, if any were.
    pub prompt_ids: Option<usize>,
    /// Of the answer.
    pub output_ids: Option<usize>,
    /// Tokens held, by the handle.
    pub tokens: u32,
    /// Block ids in each KV group, by the handle.
    pub blocks_of_groups: &'a [usize],
    /// Tokens of a block.
    pub block_tokens: NonZeroU32,
    /// Whether the history has media in it.
    pub has_media: bool,
}

impl Counts<'_> {
    /// Whether what was told belongs together.
    ///
    /// # Errors
    /// Why nothing can be proven of the turn.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.has_media {
            return Err(Refusal::Media);
        }
        let (Some(prompt), Some(output)) = (self.prompt_ids, self.output_ids) else {
            return Err(Refusal::NoTokenIds);
        };
        let (said, expected) = (self.tokens as usize, tokens_held(prompt, output));
        if said != expected {
            return Err(Refusal::CountMismatch { what: Counted::Tokens, said, expected });
        }
        let &[said] = self.blocks_of_groups else {
            return Err(Refusal::SeveralKvGroups { groups: self.blocks_of_groups.len() });
        };
        let expected = self.tokens.div_ceil(self.block_tokens.get()) as usize;
        if said != expected {
            return Err(Refusal::CountMismatch { what: Counted::Blocks, said, expected });
        }
        Ok(())
    }
}

/// KV that something can be proven of.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Held {
    sequence: Sequence,
    block_tokens: NonZeroU32,
}

impl Held {
    /// What an engine with blocks of its own holds after a turn.
    pub fn of_turn(told: &Told<'_>) -> Result<Self, Refusal> {
        told.counts().check()?;
        let (prompt, output) = (told.prompt_ids.unwrap_or_default(), told.output_ids.unwrap_or_default());
        let ids: Vec<u32> = prompt.iter().chain(output).copied().take(told.tokens as usize).collect();
        Ok(Self::of_sequence(Sequence::of_ids(&ids), told.block_tokens))
    }

    /// What is held elsewhere, where whoever moves it knows the blocks.
    pub fn of_sequence(sequence: Sequence, block_tokens: NonZeroU32) -> Self {
        Self { sequence, block_tokens }
    }

    /// With proofs in the place of ids, see [`Sequence::into_proofs`].
    #[must_use]
    pub fn into_proofs(self, position_tokens: NonZeroU32) -> Self {
        Self { sequence: self.sequence.into_proofs(position_tokens), ..self }
    }

    /// Its tokens.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Blocks that it is in.
    pub fn blocks(&self) -> u32 {
        self.sequence.tokens().div_ceil(self.block_tokens.get())
    }

    /// Whether all of this that could ever be used is proven to be in another hold too, so that nothing is lost with it.
    pub fn is_in(&self, other: &Self) -> bool {
        self.sequence.proven_with(&other.sequence) == Ok(self.sequence.provable_tokens())
    }

    /// The part of it that may be used for a prompt.
    pub fn cut_for(&self, prompt: &Prompt) -> Result<Cut, Refusal> {
        if prompt.has_media {
            return Err(Refusal::Media);
        }
        let proven_tokens = self.sequence.proven_with(&prompt.sequence)?;
        // A prompt's last token is always computed: its output is the answer's first.
        let tokens = proven_tokens.min(prompt.sequence.tokens().saturating_sub(1));
        let block_tokens = self.block_tokens.get();
        if tokens < block_tokens {
            return Err(Refusal::LessThanABlock { proven_tokens: tokens, block_tokens });
        }
        Ok(Cut { tokens, blocks: tokens.div_ceil(block_tokens) })
    }
}

/// A prompt that held KV may be used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Its tokens, as the engine that reads it has them.
    pub sequence: Sequence,
    /// Whether media are in it ([`super::chain::Chain::has_media`]).
    pub has_media: bool,
}

/// The proven part of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut {
    tokens: u32,
    blocks: u32,
}

impl Cut {
    /// Proven to be alike, from the first on.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Blocks that these are in. The last may have others behind them, which whoever reads it computes anew.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The ids of those blocks. `None` where the list is shorter: it is of another hold.
    pub fn ids<'a, T>(&self, ids: &'a [T]) -> Option<&'a [T]> {
        ids.get(..self.blocks as usize)
    }
}

/// Tokens whose KV an engine has after a turn: the last one that it generated was never read.
pub fn tokens_held(prompt_tokens: usize, output_tokens: usize) -> usize {
    (prompt_tokens + output_tokens).saturating_sub(1)
}

#[cfg(test)]
mod tests;
