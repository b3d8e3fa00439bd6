//! The right answer, computed in one stream: no slab, no blocks, no cache, no copy that could go wrong.

use crate::model::{Digest, Model, Sampling};
use crate::tokens::{END, Token};

/// What the answer depends on besides the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Params {
    /// The engine's model.
    pub model: Model,
    /// Temperature and seed.
    pub sampling: Sampling,
    /// Which of several answers to one request.
    pub choice: u32,
    /// Never end before `max_tokens`.
    pub ignore_end: bool,
    /// Never end before so many tokens.
    pub min_tokens: usize,
}

/// The answer to a prompt, [`END`] included where it ends by itself.
pub fn complete(prompt: &[Token], max_tokens: usize, params: &Params) -> Vec<Token> {
    let model = params.model;
    let mut entry = vec![0; model.kv_bytes_per_token()];
    let mut before = 0;
    let mut all = Digest::default();
    let mut position = 0;
    let mut read = |token: Token| {
        model.write_entry(token, position, before, &mut entry);
        before = Digest::of(&entry);
        all.absorb(&entry);
        position += 1;
        all
    };
    let mut entries = Digest::default();
    for token in prompt {
        entries = read(*token);
    }
    let mut answer = Vec::with_capacity(max_tokens);
    while answer.len() < max_tokens {
        let may_end = may_end(answer.len(), params.min_tokens, params.ignore_end);
        let token = model.next_token(&entries, params.sampling, params.choice, may_end);
        answer.push(token);
        if token == END {
            break;
        }
        entries = read(token);
    }
    answer
}

/// Whether the answer may end with its next token. The first token never ends it: a prefill leg makes one token, and
/// its blocks are kept for the decode leg only if the answer goes on.
pub fn may_end(output_tokens: usize, min_tokens: usize, ignore_end: bool) -> bool {
    !ignore_end && output_tokens >= min_tokens.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::{FIRST_WORD, tokenize, words};

    fn greedy(prompt: &str) -> Vec<Token> {
        complete(&tokenize(prompt), 64, &Params::default())
    }

    #[test]
    fn answers_are_words_and_depend_on_the_whole_prompt() {
        let answer = greedy("Once upon a time");
        assert!(answer.iter().all(|token| (FIRST_WORD..=END).contains(token)));
        assert_ne!(answer, greedy("once upon a time"));
        assert_ne!(answer, greedy("Once upon a tima"));
        assert_eq!(answer, greedy("Once upon a time"));
    }

    #[test]
    fn some_answers_end_by_themselves_and_none_at_once() {
        let answers: Vec<_> = (0..200).map(|seed| greedy(&words(seed, 5))).collect();
        let ended = answers.iter().filter(|answer| answer.last() == Some(&END)).count();
        assert!((10..100).contains(&ended), "{ended}");
        assert!(answers.iter().all(|answer| answer[0] != END));
        let ignoring = Params { ignore_end: true, ..Params::default() };
        assert!((0..200).all(|seed| complete(&tokenize(&words(seed, 5)), 64, &ignoring).len() == 64));
    }

    #[test]
    fn seeds_and_choices_tell_sampled_answers_apart() {
        let prompt = tokenize("hello");
        let answer =
            |sampling, choice| complete(&prompt, 8, &Params { sampling, choice, ..Params::default() });
        assert_ne!(answer(Sampling::Seeded(1), 0), answer(Sampling::Seeded(2), 0));
        assert_ne!(answer(Sampling::Seeded(1), 0), answer(Sampling::Seeded(1), 1));
        assert_ne!(answer(Sampling::Seeded(0), 0), answer(Sampling::Greedy, 0));
        assert_eq!(answer(Sampling::Seeded(1), 0), answer(Sampling::Seeded(1), 0));
    }
}
