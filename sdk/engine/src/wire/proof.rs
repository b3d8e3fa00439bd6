//! What proves that two sequences of tokens begin alike.

use sha2::{Digest, Sha256};

use super::MAX_BLOCKS;
use super::bytes::{Cursor, DecodeError, Wire, Writer};

/// The digest of all tokens of a sequence up to the end of one position, chained over the proof before it. Equal
/// proofs at one position are equal tokens up to its end: 16 bytes of SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Proof(pub [u8; 16]);

/// A proof for each whole position of a sequence, [`MAX_BLOCKS`] at most. What is left of the tokens is not proven.
#[must_use]
pub fn proofs(tokens: &[u32], position_tokens: u32) -> Vec<Proof> {
    let mut before = Proof([0; 16]);
    let positions = tokens.chunks_exact((position_tokens as usize).max(1)).take(MAX_BLOCKS);
    let proof = |position: &[u32]| {
        let mut digest = Sha256::new();
        digest.update(before.0);
        position.iter().for_each(|token| digest.update(token.to_le_bytes()));
        before.0.copy_from_slice(&digest.finalize()[..16]);
        before
    };
    positions.map(proof).collect()
}

impl Wire for Vec<Proof> {
    fn put(&self, out: &mut Writer) {
        if out.within("proofs", self.len(), MAX_BLOCKS) {
            (self.len() as u32).put(out);
            self.iter().for_each(|proof| out.bytes.extend(proof.0));
        }
    }

    /// Nothing is allocated for items that the bytes cannot hold.
    fn take(from: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let count = u32::take(from)? as usize;
        if count > MAX_BLOCKS {
            return Err(DecodeError::TooMany { what: "proofs", count, limit: MAX_BLOCKS });
        }
        let (proofs, _) = from.slice(count * 16)?.as_chunks();
        Ok(proofs.iter().map(|proof| Proof(*proof)).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn proofs_are_equal_up_to_the_first_difference(
            tokens in prop::collection::vec(0..1_000_u32, 1..80), at in 0..80_usize, position_tokens in 1..20_u32,
        ) {
            let (whole, at) = (proofs(&tokens, position_tokens), at % tokens.len());
            prop_assert_eq!(whole.len(), tokens.len() / position_tokens as usize);
            let mut other = tokens.clone();
            other[at] += 1;
            let equal = whole.iter().zip(proofs(&other, position_tokens)).take_while(|(a, b)| **a == *b);
            let expected = (at / position_tokens as usize).min(whole.len());
            prop_assert_eq!(equal.count(), expected);
            prop_assert!(whole.starts_with(&proofs(&tokens[..at], position_tokens)));
        }
    }

    #[test]
    fn a_position_of_no_tokens_is_taken_for_one() {
        assert_eq!(proofs(&[1, 2], 0), proofs(&[1, 2], 1));
    }
}
