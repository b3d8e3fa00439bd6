//! Inputs made up from seeds: cut, spliced, repeated, and sprinkled with tokens that matter. The same seed makes the same
//! inputs, so that a failure comes again.

/// The tokens that JSON, SSE and this wire are made of, in libFuzzer's format.
pub const WIRE: &str = include_str!("../tokens.dict");

/// The tokens of WASM, as text and as bytes.
pub const WASM: &str = include_str!("../wasm.dict");

/// The tokens of TOML and JSON Schema.
pub const SETTINGS: &str = include_str!("../settings.dict");

/// Numbers as they lie in a guest's memory.
pub const NUMBERS: &str = include_str!("../numbers.dict");

/// The longest input unless said otherwise, in bytes: long enough for two chunks and a prompt, short enough for thousands
/// a second.
const INPUT_BYTES_AT_MOST: usize = 4_096;

/// Changes of one input.
const CHANGES_AT_MOST: u64 = 6;

/// Inputs kept beside the seeds to be changed further; a new one takes the place of an older one.
const KEPT_AT_MOST: usize = 256;

/// A source of numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Another seed, other numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }
}

/// Makes inputs up for ever.
#[derive(Debug)]
pub struct Mutator {
    random: Random,
    seeds: usize,
    corpus: Vec<Vec<u8>>,
    tokens: Vec<Vec<u8>>,
    bytes_at_most: usize,
}

impl Mutator {
    /// From these inputs and the tokens of this dictionary.
    pub fn new(seed: u64, seeds: Vec<Vec<u8>>, dictionary: &str) -> Self {
        Self {
            random: Random::new(seed),
            seeds: seeds.len(),
            corpus: seeds,
            tokens: tokens(dictionary),
            bytes_at_most: INPUT_BYTES_AT_MOST,
        }
    }

    /// The same with inputs of up to so many bytes.
    #[must_use]
    pub fn up_to(self, bytes_at_most: usize) -> Self {
        Self { bytes_at_most, ..self }
    }

    /// The next input: one of the corpus, changed a few times.
    pub fn next_input(&mut self) -> Vec<u8> {
        let chosen = self.random.index(self.corpus.len());
        let mut input = self.corpus.get(chosen).cloned().unwrap_or_default();
        for _ in 0..=self.random.below(CHANGES_AT_MOST) {
            self.change(&mut input);
            input.truncate(self.bytes_at_most);
        }
        input
    }

    /// Keeps an input to be changed further, so that changes add up.
    pub fn keep(&mut self, input: Vec<u8>) {
        let place = self.seeds + self.random.index(KEPT_AT_MOST);
        match self.corpus.get_mut(place) {
            Some(older) => *older = input,
            None => self.corpus.push(input),
        }
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let random = &mut self.random;
        let at = random.index(input.len() + 1);
        let end = (at + random.index(16) + 1).min(input.len());
        match random.below(10) {
            0 if at < input.len() => input[at] = random.number() as u8,
            1 if at < input.len() => input[at] ^= 1 << random.below(8),
            2 => drop(input.drain(at.min(end)..end)),
            3 => {
                let piece = input[at.min(end)..end].to_vec();
                let times = random.index(8);
                drop(input.splice(at..at, piece.repeat(times)));
            }
            4 => {
                let other = random.index(self.corpus.len());
                let other = self.corpus.get(other).cloned().unwrap_or_default();
                let from = random.index(other.len() + 1);
                let length = random.index(128);
                let piece = other.into_iter().skip(from).take(length);
                drop(input.splice(at..at, piece));
            }
            5..=7 => {
                // Another element or member, where one may stand.
                let places: Vec<_> = (0..input.len()).filter(|at| b"{[,".contains(&input[*at])).collect();
                if let Some(place) = places.get(random.index(places.len())) {
                    let token = random.index(self.tokens.len());
                    let token = self.tokens.get(token).into_iter().flatten().copied().chain([b',']);
                    drop(input.splice(place + 1..place + 1, token));
                }
            }
            _ => {
                let token = random.index(self.tokens.len());
                let token = self.tokens.get(token).cloned().unwrap_or_default();
                let end = if random.below(2) == 0 { at } else { end.max(at) };
                drop(input.splice(at..end, token));
            }
        }
    }
}

/// Tokens of a dictionary: a quoted string in each line, with `\"`, `\\` and `\xNN`.
fn tokens(dictionary: &str) -> Vec<Vec<u8>> {
    let quoted = dictionary.lines().filter_map(|line| line.strip_prefix('"')?.strip_suffix('"'));
    quoted.map(unescaped).collect()
}

fn unescaped(text: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let hexadecimal = after.get(1..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = hexadecimal.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        (rest, _) = match (first, after.first(), byte) {
            (b'\\', Some(b'x'), Some(byte)) => (&after[3..], out.push(byte)),
            (b'\\', Some(escaped), _) => (&after[1..], out.push(*escaped)),
            _ => (after, out.push(*first)),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_are_read() {
        let read = tokens("# tokens\n\"{\"\n\"\\\"a\\\\\"\n\"\\x0d\\x0a\"\n");
        assert_eq!(read, [b"{".to_vec(), b"\"a\\".to_vec(), b"\r\n".to_vec()]);
        for (dictionary, count) in [(WIRE, 40), (WASM, 40), (SETTINGS, 40), (NUMBERS, 10)] {
            assert!(tokens(dictionary).len() > count, "{dictionary}");
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_inputs() {
        let inputs = |seed| {
            let mut mutator = Mutator::new(seed, vec![b"{\"a\":1}".to_vec(), b"[]".to_vec()], WIRE);
            (0..100).map(|_| mutator.next_input()).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
    }
}
