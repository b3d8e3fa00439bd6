//! An engine's stream: the same events however the network cuts it, and nothing internal in any.

use bytes::Bytes;
use sluice::http::members::Members;
use sluice::http::sse::{ENGINE_INTERNAL, Splitter, join, without_internal};

use crate::mutate::Random;

/// Bytes of an input that say where the rest of it is cut.
const SEED_BYTES: usize = 8;

/// The longest piece, in bytes: borders fall inside pieces and between them.
const PIECE_BYTES_AT_MOST: u64 = 24;

/// The first bytes are a seed of cuts, the rest is a stream. Says whether there is an event in it.
pub fn check(input: &[u8]) -> bool {
    let (seed, stream) = input.split_at(SEED_BYTES.min(input.len()));
    let seed = seed.iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte));
    let whole = events(std::iter::once(stream));
    let mut random = Random::new(seed);
    let mut rest = stream;
    let pieces = std::iter::from_fn(|| {
        let length = (random.below(PIECE_BYTES_AT_MOST) + 1) as usize;
        let (piece, after) = rest.split_at(length.min(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    });
    assert_eq!(events(pieces), whole, "cut by {seed}");
    assert!(stream.starts_with(&whole.concat()), "events are the stream");
    assert_eq!(join(whole.clone()), whole.concat());
    let has_events = !whole.is_empty();
    for event in whole {
        cleaned(event);
    }
    has_events
}

fn events<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Bytes> {
    let mut splitter = Splitter::default();
    pieces.flat_map(|piece| splitter.push(Bytes::copy_from_slice(piece)).expect("short events")).collect()
}

fn cleaned(event: Bytes) {
    let clean = without_internal(event.clone());
    if !ENGINE_INTERNAL.iter().any(|name| contains(&event, name)) {
        // `_transfer_params` alone may be a name of another kind.
        if !contains(&event, "_transfer_params") {
            assert_eq!(clean, event, "an event without internal members stays as it came");
        }
        return;
    }
    assert_eq!(without_internal(clean.clone()), clean, "cleaning again changes nothing");
    // What a client reads: the `data:` lines of an event, joined.
    let mut payload = Vec::new();
    for line in clean.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:")) {
        payload.extend_from_slice(line);
        payload.push(b'\n');
    }
    // No engine spells its own members with escapes; a stream that does is not searched for them.
    if let Ok(members) = Members::parse(&payload)
        && !contains(&payload, "\\u")
    {
        for name in ENGINE_INTERNAL {
            assert!(!members.has(name), "{name} goes to a client");
        }
    }
}

fn contains(text: &[u8], part: &str) -> bool {
    memchr::memmem::find(text, part.as_bytes()).is_some()
}
