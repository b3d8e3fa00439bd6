//! The prompt of a probe.

use crate::hash::mix;

/// Words of a probe's prompt at most: blocks of thousands of tokens are probed with less than one.
const WORDS_AT_MOST: u32 = 4_096;

/// Blocks that a prompt of one token a word fills. Most words are more than one token.
const BLOCKS_FILLED: u32 = 3;

/// A prompt that no cache has: words drawn from `nonce`, enough to fill some KV blocks.
pub fn prompt(nonce: u64, block_tokens: u32) -> String {
    let words = block_tokens.saturating_mul(BLOCKS_FILLED).clamp(1, WORDS_AT_MOST);
    let mut state = mix(nonce);
    let words = (0..words).map(|_| {
        state = mix(state);
        word(state)
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Three syllables: 10 letters by 5, thrice, are 125,000 words.
fn word(mut draw: u64) -> String {
    let mut next = |letters: &'static [u8]| {
        let letter = letters[(draw % letters.len() as u64) as usize];
        draw /= letters.len() as u64;
        char::from(letter)
    };
    (0..3).flat_map(|_| [next(b"bdfklmnprt"), next(b"aeiou")]).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn prompts_differ_from_their_first_words_on() {
        let prompts: BTreeSet<String> =
            (0..1_000).map(|nonce| prompt(nonce, 16).chars().take(20).collect()).collect();
        assert_eq!(prompts.len(), 1_000);
        assert_eq!(prompt(1, 16).split(' ').count(), 48);
        assert_eq!(prompt(1, u32::MAX).split(' ').count(), 4_096);
        assert_eq!(prompt(7, 16), prompt(7, 16));
    }
}
