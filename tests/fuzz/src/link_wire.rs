//! The KV link: what an engine's process sends to its host, and what a host sends to its engines.

use sluice_engine_sdk::wire::{
    DecodeError, EncodeError, Frame, FrameBuffer, HELLO_AT_MOST_BYTES, MAX_FRAME_BYTES, Message, Preamble,
    ToEngine, ToHost, encode, read_answer, read_hello, write_answer, write_hello,
};

use crate::mutate::Random;

/// The longest piece that the bytes come in.
const PIECE_BYTES_AT_MOST: u64 = 24;

/// The first byte says who reads, the second how the rest is cut. Says whether something was understood.
pub fn check(input: &[u8]) -> bool {
    let [reader, seed, stream @ ..] = input else { return false };
    match reader % 4 {
        0 => frames::<ToHost>(stream, *seed),
        1 => frames::<ToEngine>(stream, *seed),
        2 => first(stream, read_hello, write_hello),
        _ => first(stream, read_answer, write_answer),
    }
}

fn frames<M: Message + PartialEq + std::fmt::Debug>(stream: &[u8], seed: u8) -> bool {
    let mut random = Random::new(seed.into());
    let (mut buffer, mut rest, mut written) = (FrameBuffer::default(), stream, Vec::new());
    let mut understood = false;
    while !rest.is_empty() {
        let len = (random.below(PIECE_BYTES_AT_MOST) + 1) as usize;
        let (piece, after) = rest.split_at(len.min(rest.len()));
        rest = after;
        buffer.push(piece);
        loop {
            let frame: Frame<M> = match buffer.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    assert!(error.to_string().len() < 512, "fits a log line: {error}");
                    assert!(stream.starts_with(&written), "what was read is what came");
                    return understood;
                }
            };
            understood = true;
            // One way to write each message: nothing in a frame is without a meaning.
            written.extend(encode(&frame).expect("what was read can be written"));
        }
        assert!(buffer.held_bytes() < MAX_FRAME_BYTES + 4, "less than a frame waits");
    }
    assert!(stream.starts_with(&written), "what was read is what came");
    understood
}

/// As a connection reads: never more than what is asked for.
fn first<T: PartialEq>(
    stream: &[u8],
    read: fn(&[u8]) -> Result<Preamble<T>, DecodeError>,
    write: fn(&T) -> Result<Vec<u8>, EncodeError>,
) -> bool {
    let mut end = 0;
    while let Some(came) = stream.get(..end) {
        match read(came) {
            Ok(Preamble::Whole(first)) => {
                let written = write(&first).expect("what was read can be written");
                assert!(written.len() <= HELLO_AT_MOST_BYTES);
                assert!(read(&written) == Ok(Preamble::Whole(first)), "written and read again it is another");
                return true;
            }
            Ok(Preamble::Needs(missing)) => {
                assert!(
                    missing > 0 && end + missing <= HELLO_AT_MOST_BYTES,
                    "asks for {missing} after {end}"
                );
                end += missing;
            }
            Err(error) => {
                assert!(error.to_string().len() < 512, "fits a log line: {error}");
                return false;
            }
        }
    }
    false
}
