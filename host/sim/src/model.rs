//! The model proper: what a token's KV entry holds, and which token follows from all entries.

use thiserror::Error;

use crate::tokens::{END, FIRST_WORD, Token, WORDS};

/// Bytes are read in rows of eight 8-byte lanes, so entries are whole rows.
pub const ROW_BYTES: usize = 64;
const LANES: usize = ROW_BYTES / 8;
/// Bound on an entry: far above what a slab of useful size can afford.
pub const MAX_KV_BYTES_PER_TOKEN: usize = 1 << 16;
/// One in so many tokens is the end of the answer, where that is allowed.
const END_ODDS: u64 = 256;

/// Why a model cannot be.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ModelError {
    /// Entries must be whole rows.
    #[error(
        "kv_bytes_per_token is {0}: use a multiple of {ROW_BYTES} between {ROW_BYTES} and {MAX_KV_BYTES_PER_TOKEN}"
    )]
    EntrySize(usize),
}

/// A model: its seed stands for the weights. Engines that share KV must have equal models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    seed: u64,
    kv_bytes_per_token: usize,
}

impl Default for Model {
    fn default() -> Self {
        Self { seed: 0, kv_bytes_per_token: ROW_BYTES }
    }
}

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sampling {
    /// Temperature 0.
    #[default]
    Greedy,
    /// Temperature above 0: another seed, another answer. Equal seeds give equal answers.
    Seeded(u64),
}

impl Model {
    /// A model whose entries are `kv_bytes_per_token` bytes, a multiple of [`ROW_BYTES`].
    pub fn new(seed: u64, kv_bytes_per_token: usize) -> Result<Self, ModelError> {
        let fits = (ROW_BYTES..=MAX_KV_BYTES_PER_TOKEN).contains(&kv_bytes_per_token);
        if !fits || !kv_bytes_per_token.is_multiple_of(ROW_BYTES) {
            return Err(ModelError::EntrySize(kv_bytes_per_token));
        }
        Ok(Self { seed, kv_bytes_per_token })
    }

    /// Size of one token's KV entry.
    pub fn kv_bytes_per_token(&self) -> usize {
        self.kv_bytes_per_token
    }

    /// Writes the KV entry of `token` at `position`. `before` is the digest of the entry before it, 0 at the start:
    /// this is how an entry depends on the whole prefix.
    pub fn write_entry(&self, token: Token, position: usize, before: u64, entry: &mut [u8]) {
        let state = mix(mix(self.seed ^ before, u64::from(token)), position as u64);
        for (index, lane) in entry.chunks_exact_mut(8).enumerate() {
            lane.copy_from_slice(&mix(state, index as u64).to_le_bytes());
        }
    }

    /// The token that follows entries with this digest. `choice` tells the answers of one request apart.
    pub fn next_token(&self, entries: &Digest, sampling: Sampling, choice: u32, may_end: bool) -> Token {
        let chosen = match sampling {
            Sampling::Greedy => entries.value(),
            Sampling::Seeded(seed) => mix(mix(entries.value(), seed), 1 + u64::from(choice)),
        };
        let draw = mix(chosen, self.seed);
        if may_end && draw.is_multiple_of(END_ODDS) {
            return END;
        }
        FIRST_WORD + ((draw >> 32) % u64::from(WORDS)) as Token
    }
}

/// A running hash over KV bytes, whole rows at a time. Each lane's step is a bijection of both the state and the word
/// read, so no single changed byte is ever lost on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    lanes: [u64; LANES],
}

impl Default for Digest {
    fn default() -> Self {
        Self { lanes: std::array::from_fn(|lane| mix(0, lane as u64)) }
    }
}

impl Digest {
    /// Reads bytes; only whole rows count.
    pub fn absorb(&mut self, bytes: &[u8]) {
        // Eight independent lanes keep the multipliers busy: long contexts are read once per token.
        let mut lanes = self.lanes;
        let (rows, _) = bytes.as_chunks::<ROW_BYTES>();
        for row in rows {
            let (words, _) = row.as_chunks::<8>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                let read = lane.rotate_left(23) ^ u64::from_le_bytes(*word);
                *lane = read.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            }
        }
        self.lanes = lanes;
    }

    /// The hash so far.
    pub fn value(&self) -> u64 {
        self.lanes.iter().fold(0, |value, lane| mix(value, *lane))
    }

    /// The hash of one piece of KV.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut digest = Self::default();
        digest.absorb(bytes);
        digest.value()
    }
}

/// A 64-bit mixer: every bit of both inputs reaches every bit of the result.
pub fn mix(left: u64, right: u64) -> u64 {
    let mut mixed =
        left.wrapping_add(right.wrapping_mul(0xD6E8_FEB8_6659_FD93)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn entry_sizes() {
        for (bytes, fits) in
            [(0, false), (63, false), (64, true), (96, false), (4096, true), (1 << 17, false)]
        {
            assert_eq!(Model::new(0, bytes).is_ok(), fits, "{bytes}");
        }
    }

    proptest! {
        #[test]
        fn one_changed_bit_changes_the_digest(
            bytes in proptest::collection::vec(any::<u8>(), 256), at in 0_usize..256, bit in 0_u8..8,
        ) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            prop_assert_ne!(Digest::of(&bytes), Digest::of(&changed));
        }

        #[test]
        fn reading_in_pieces_is_reading_at_once(bytes in proptest::collection::vec(any::<u8>(), 256), rows in 0_usize..4) {
            let mut digest = Digest::default();
            digest.absorb(&bytes[..rows * ROW_BYTES]);
            digest.absorb(&bytes[rows * ROW_BYTES..]);
            prop_assert_eq!(digest.value(), Digest::of(&bytes));
        }
    }
}
