//! The vocabulary: 256 bytes, 4,096 words, one end.
//!
//! A word is a space and two syllables (` bado`). It is found wherever its five bytes stand, so text made of words
//! turns back into exactly the tokens it was made from, whatever stands around it: a word starts with the only space
//! it has, hence none can begin inside other text and reach into the next token.

/// A token id, below [`VOCABULARY`].
pub type Token = u32;

/// Ids below are single bytes.
pub const FIRST_WORD: Token = 256;
/// How many words there are.
pub const WORDS: Token = 64 * 64;
/// End of sequence; has no text.
pub const END: Token = FIRST_WORD + WORDS;
/// How many ids there are.
pub const VOCABULARY: Token = END + 1;

const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
const VOWELS: &[u8; 4] = b"aeio";
const WORD_BYTES: usize = 5;

/// Turns text into tokens.
pub fn tokenize(text: &str) -> Vec<Token> {
    let mut rest = text.as_bytes();
    let mut tokens = Vec::with_capacity(rest.len() / 3);
    while let Some((first, tail)) = rest.split_first() {
        match word_at(rest) {
            Some(word) => {
                tokens.push(word);
                rest = &rest[WORD_BYTES..];
            }
            None => {
                tokens.push(Token::from(*first));
                rest = tail;
            }
        }
    }
    tokens
}

/// Turns tokens into text. Bytes that are no UTF-8 become replacement characters; unknown ids have no text.
pub fn text(tokens: &[Token]) -> String {
    let mut bytes = Vec::with_capacity(tokens.len() * WORD_BYTES);
    for token in tokens {
        push_text(*token, &mut bytes);
    }
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Text of `count` words that depend on `seed` alone: exactly `count` tokens.
pub fn words(seed: u64, count: usize) -> String {
    let tokens: Vec<Token> = (0..count as u64)
        .map(|index| FIRST_WORD + (crate::model::mix(seed, index) % u64::from(WORDS)) as Token)
        .collect();
    text(&tokens)
}

fn push_text(token: Token, bytes: &mut Vec<u8>) {
    if let Ok(byte) = u8::try_from(token) {
        bytes.push(byte);
    } else if token < END {
        let word = (token - FIRST_WORD) as usize;
        bytes.push(b' ');
        for syllable in [word / 64, word % 64] {
            bytes.extend([CONSONANTS[syllable / 4], VOWELS[syllable % 4]]);
        }
    }
}

fn word_at(bytes: &[u8]) -> Option<Token> {
    let [b' ', first, second, third, fourth, ..] = *bytes else { return None };
    let word = syllable(first, second)? * 64 + syllable(third, fourth)?;
    Some(FIRST_WORD + word)
}

fn syllable(consonant: u8, vowel: u8) -> Option<Token> {
    let consonant = CONSONANTS.iter().position(|known| *known == consonant)?;
    let vowel = VOWELS.iter().position(|known| *known == vowel)?;
    Some((consonant * 4 + vowel) as Token)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_word_reads_back_as_itself() {
        for token in FIRST_WORD..END {
            assert_eq!(tokenize(&text(&[token])), [token]);
        }
        assert_eq!(text(&[END]), "");
    }

    #[test]
    fn words_counts_tokens() {
        for count in [0, 1, 7, 500] {
            let tokens = tokenize(&words(3, count));
            assert_eq!(tokens.len(), count);
            assert!(tokens.iter().all(|token| *token >= FIRST_WORD));
        }
        assert_ne!(words(1, 8), words(2, 8));
    }

    proptest! {
        #[test]
        fn text_survives_the_round_trip(text_in in ".{0,80}") {
            prop_assert_eq!(text(&tokenize(&text_in)), text_in);
        }

        #[test]
        fn words_stay_apart_from_what_stands_before(
            before in "[ a-z\n]{0,20}",
            answer in proptest::collection::vec(FIRST_WORD..END, 0..20),
        ) {
            let mut expect = tokenize(&before);
            expect.extend(&answer);
            prop_assert_eq!(tokenize(&format!("{before}{}", text(&answer))), expect);
        }
    }
}
