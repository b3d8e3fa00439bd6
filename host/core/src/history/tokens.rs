//! Sequences of tokens, and how far two of them are proven to be equal.

use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Digest;
use super::guard::Refusal;

/// Proofs kept of one sequence, 16 bytes each. As many positions as an engine's link speaks of; what is behind them is not
/// proven.
pub const PROOFS_AT_MOST: usize = 16_384;

/// Of all tokens of a sequence up to the end of one position, chained over the proof before it: 16 bytes of SHA-256. The same
/// bytes as engines send over their links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Proof(pub [u8; 16]);

/// 32 hexadecimal digits: many are saved at a time.
impl From<Proof> for String {
    fn from(proof: Proof) -> Self {
        format!("{:?}", Digest(proof.0))
    }
}

impl TryFrom<String> for Proof {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Digest::parse(&text).map(|digest| Self(digest.0)).ok_or("a proof is 32 hexadecimal digits")
    }
}

/// A proof for each whole position of this many tokens, [`PROOFS_AT_MOST`] at most. Hashed one by one as they are asked for.
pub fn proofs(tokens: &[u32], position_tokens: NonZeroU32) -> impl Iterator<Item = Proof> + '_ {
    let positions = tokens.chunks_exact(position_tokens.get() as usize).take(PROOFS_AT_MOST);
    positions.scan(Proof([0; 16]), |before, position| {
        let mut hasher = Sha256::new();
        hasher.update(before.0);
        position.iter().for_each(|token| hasher.update(token.to_le_bytes()));
        before.0.copy_from_slice(&hasher.finalize()[..16]);
        Some(*before)
    })
}

/// What is known of a sequence's tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Known {
    Ids(Arc<[u32]>),
    Proofs { position_tokens: NonZeroU32, proofs: Arc<[Proof]> },
}

/// A prompt's tokens, or those that a holder holds. Cheap to copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequence {
    tokens: u32,
    known: Known,
}

impl Sequence {
    /// Of which all ids are known. Those past 2^32 are left out.
    pub fn of_ids(ids: &[u32]) -> Self {
        let tokens = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        Self { tokens, known: Known::Ids(ids[..tokens as usize].into()) }
    }

    /// Of which proofs are known, one for each of its first positions; surplus ones, that no whole position is behind,
    /// are left out.
    pub fn of_proofs(tokens: u32, position_tokens: NonZeroU32, mut proofs: Vec<Proof>) -> Self {
        proofs.truncate(((tokens / position_tokens) as usize).min(PROOFS_AT_MOST));
        Self { tokens, known: Known::Proofs { position_tokens, proofs: proofs.into() } }
    }

    /// With proofs in the place of ids: 16 bytes a position in the place of 4 a token, and whole positions are all that is proven from
    /// then on. Proofs of other positions stay as they are.
    #[must_use]
    pub fn into_proofs(self, position_tokens: NonZeroU32) -> Self {
        match &self.known {
            Known::Ids(ids) => {
                Self::of_proofs(self.tokens, position_tokens, proofs(ids, position_tokens).collect())
            }
            Known::Proofs { .. } => self,
        }
    }

    /// How many tokens it has, known or not.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// How many of its leading tokens can be proven at all.
    pub fn provable_tokens(&self) -> u32 {
        match &self.known {
            Known::Ids(_) => self.tokens,
            Known::Proofs { position_tokens, proofs } => proofs.len() as u32 * position_tokens.get(),
        }
    }

    /// What is kept of it, in bytes.
    pub fn bytes(&self) -> usize {
        match &self.known {
            Known::Ids(ids) => size_of_val::<[u32]>(ids),
            Known::Proofs { proofs, .. } => size_of_val::<[Proof]>(proofs),
        }
    }

    /// Leading tokens that both are proven to have alike. Proofs are of whole positions, and comparable only at equal ones.
    pub fn proven_with(&self, other: &Self) -> Result<u32, Refusal> {
        match (&self.known, &other.known) {
            (Known::Ids(one), Known::Ids(other)) => Ok(equal(one.iter().copied(), other)),
            (Known::Ids(ids), Known::Proofs { position_tokens, proofs: other })
            | (Known::Proofs { position_tokens, proofs: other }, Known::Ids(ids)) => {
                Ok(equal(proofs(ids, *position_tokens), other) * position_tokens.get())
            }
            (
                Known::Proofs { position_tokens, proofs: one },
                Known::Proofs { position_tokens: others, proofs: other },
            ) => {
                if position_tokens != others {
                    let (one, other) = (position_tokens.get(), others.get());
                    return Err(Refusal::PositionsDiffer { one, other });
                }
                Ok(equal(one.iter().copied(), other) * position_tokens.get())
            }
        }
    }
}

/// How many items are equal, from the first on. No more of `one` is asked for than that, and one more.
fn equal<T: PartialEq>(one: impl Iterator<Item = T>, other: &[T]) -> u32 {
    other.iter().zip(one).take_while(|(other, one)| *other == one).count() as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn size(tokens: u32) -> NonZeroU32 {
        NonZeroU32::new(tokens).expect("not 0")
    }

    /// `sha256(sha256(0^16 || le32(1) || le32(2))[..16] || le32(3) || le32(4))[..16]`, as engines compute it.
    #[test]
    fn proofs_are_those_of_the_link() {
        let proofs = proofs(&[1, 2, 3, 4, 5], size(2));
        let hex = |proof: Proof| proof.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(proofs.map(hex).collect::<Vec<_>>(), VECTOR);
    }

    const VECTOR: [&str; 2] = ["c3f5aadf8ecfcdf7e6caaeac2626219a", "b2e72b877338305af617bc2b7fe7ee88"];

    #[test]
    fn surplus_proofs_prove_nothing() {
        let proofs = proofs(&[1, 2, 3, 4], size(2)).collect();
        let short = Sequence::of_proofs(3, size(2), proofs);
        assert_eq!((short.bytes(), short.proven_with(&Sequence::of_ids(&[1, 2, 3, 4]))), (16, Ok(2)));
    }

    #[test]
    fn proofs_of_other_positions_are_not_compared() {
        let ids = Sequence::of_ids(&[1; 12]);
        let (by_2, by_3) = (ids.clone().into_proofs(size(2)), ids.into_proofs(size(3)));
        assert_eq!(by_2.proven_with(&by_3), Err(Refusal::PositionsDiffer { one: 2, other: 3 }));
    }

    proptest! {
        /// Whatever is known of either: never more than the longest common prefix, less by less than a position.
        #[test]
        fn what_is_proven_is_the_longest_common_prefix(
            one in prop::collection::vec(0..2_u32, 0..50), other in prop::collection::vec(0..2_u32, 0..50),
            shared in prop::collection::vec(0..9_u32, 0..50), tokens in 1..9_u32,
        ) {
            let (one, other) = ([shared.clone(), one].concat(), [shared, other].concat());
            let naive = (0..one.len().min(other.len())).take_while(|at| one[*at] == other[*at]).count() as u32;
            let (one, other) = (Sequence::of_ids(&one), Sequence::of_ids(&other));
            prop_assert_eq!(one.proven_with(&other), Ok(naive));
            let whole = naive - naive % tokens;
            let proven = [one.clone().into_proofs(size(tokens)), other.clone().into_proofs(size(tokens))];
            prop_assert_eq!(proven[0].proven_with(&other), Ok(whole));
            prop_assert_eq!(one.proven_with(&proven[1]), Ok(whole));
            prop_assert_eq!(proven[0].proven_with(&proven[1]), Ok(whole));
        }
    }
}
