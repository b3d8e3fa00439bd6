//! Server-sent events, cut at their borders and otherwise untouched.
//!
//! Only whole events leave the splitter, so that an engine-internal member is seen whole wherever the network
//! cut the stream. An event without such a member leaves as the very bytes that came.

use bytes::{Buf, Bytes, BytesMut};

use super::internal;
pub use super::internal::ENGINE_INTERNAL;
use super::members::Members;

/// The longest event taken. vLLM's largest chunks (logprobs, `prompt_token_ids`) are under 1 MiB.
pub const EVENT_BYTES_AT_MOST: usize = 8 * 1024 * 1024;

/// An event was longer than [`EVENT_BYTES_AT_MOST`].
#[derive(Debug, thiserror::Error)]
#[error("an event of the stream is longer than {EVENT_BYTES_AT_MOST} bytes")]
pub struct EventTooLong;

/// Cuts a byte stream into events.
#[derive(Debug, Default)]
pub struct Splitter {
    rest: BytesMut,
    scanned: usize,
}

impl Splitter {
    /// Takes the next bytes and returns all events that are whole now, each with its closing blank line.
    pub fn push(&mut self, chunk: Bytes) -> Result<Vec<Bytes>, EventTooLong> {
        self.push_whole(chunk).map(|whole| events(&whole).collect())
    }

    /// As [`Self::push`], but all of them in one piece, which [`events`] takes apart; empty when none is whole.
    pub fn push_whole(&mut self, mut chunk: Bytes) -> Result<Bytes, EventTooLong> {
        let whole = if self.rest.is_empty() {
            // The usual case: whole events in, the same memory out.
            let whole = chunk.split_to(borders(&chunk, 0).last().unwrap_or(0));
            self.rest.extend_from_slice(&chunk);
            whole
        } else {
            self.rest.extend_from_slice(&chunk);
            let length = borders(&self.rest, self.scanned).last().unwrap_or(0);
            self.rest.split_to(length).freeze()
        };
        // A border may straddle the cut: look again at the last three bytes.
        self.scanned = self.rest.len().saturating_sub(3);
        if self.rest.len() > EVENT_BYTES_AT_MOST { Err(EventTooLong) } else { Ok(whole) }
    }
}

/// Where events end in `text`, in order. `from` is known to hold no border before it.
fn borders(text: &[u8], from: usize) -> impl Iterator<Item = usize> + '_ {
    let mut at = from;
    std::iter::from_fn(move || {
        while let Some(offset) = memchr::memchr(b'\n', text.get(at..)?) {
            let newline = at + offset;
            at = newline + 1;
            let blank = match text.get(newline + 1..) {
                Some([b'\n', ..]) => 1,
                Some([b'\r', b'\n', ..]) => 2,
                _ => continue,
            };
            at += blank;
            return Some(at);
        }
        None
    })
}

/// The events of a piece that [`Splitter::push_whole`] gave.
pub fn events(whole: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    let mut start = 0;
    borders(whole, 0).map(move |end| whole.slice(std::mem::replace(&mut start, end)..end))
}

/// How many there are, comments such as keep-alives left out.
pub fn count(whole: &[u8]) -> usize {
    let mut start = 0;
    borders(whole, 0).filter(|end| whole[std::mem::replace(&mut start, *end)] != b':').count()
}

/// The payload of a `data:` line.
pub fn data(line: &[u8]) -> Option<&[u8]> {
    let payload = line.strip_prefix(b"data:")?;
    let payload = payload.strip_prefix(b" ").unwrap_or(payload);
    Some(payload.trim_ascii_end())
}

/// The payload of an event's first `data:` line, whatever lines come before it.
pub fn payload(event: &[u8]) -> Option<&[u8]> {
    event.split(|byte| *byte == b'\n').find_map(data)
}

/// What becomes of a `data:` line.
pub enum Line {
    /// It stays as it came.
    Keep,
    /// It goes.
    Drop,
    /// It gets this payload.
    Replace(Vec<u8>),
}

/// Rewrites an event's `data:` lines, each by its payload. Other lines stay as they came.
pub fn rewrite(event: &[u8], mut line_of: impl FnMut(&[u8]) -> Line) -> Bytes {
    let mut out = BytesMut::with_capacity(event.len());
    let mut rest = event;
    while !rest.is_empty() {
        let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |newline| newline + 1);
        let line;
        (line, rest) = rest.split_at(end);
        match data(line).map_or(Line::Keep, &mut line_of) {
            Line::Keep => out.extend_from_slice(line),
            Line::Drop => {}
            Line::Replace(payload) => {
                out.extend_from_slice(b"data: ");
                out.extend_from_slice(&payload);
                out.extend_from_slice(b"\n");
            }
        }
    }
    out.freeze()
}

/// Takes [`ENGINE_INTERNAL`] members out of an event. Returns the event as it came when it holds none.
pub fn without_internal(event: Bytes) -> Bytes {
    if !internal::may_hold_internal(&event) {
        return event;
    }
    rewrite(&event, |payload| match Members::parse(payload) {
        Ok(members) => internal::without_internal(&members).map_or(Line::Keep, Line::Replace),
        // It names such a member and cannot be read: better nothing than a handle in a client's hands.
        Err(_) => Line::Drop,
    })
}

/// Joins events into one chunk, so that a burst costs one write. One event is passed on as it is.
pub fn join(mut events: Vec<Bytes>) -> Bytes {
    if events.len() == 1 {
        return events.swap_remove(0);
    }
    let mut out = BytesMut::with_capacity(events.iter().map(Buf::remaining).sum());
    for event in events {
        out.extend_from_slice(&event);
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b"data: {\"a\":1}\n\ndata: {\"b\":\"x\\n\\n\"}\n\n: ping\r\n\r\ndata: [DONE]\n\n";

    fn cut(stream: &[u8], step: usize) -> Vec<Bytes> {
        let mut splitter = Splitter::default();
        let mut events = Vec::new();
        for chunk in stream.chunks(step) {
            events.extend(splitter.push(Bytes::copy_from_slice(chunk)).expect("short events"));
        }
        assert!(splitter.rest.is_empty());
        events
    }

    #[test]
    fn events_are_the_same_however_the_network_cuts() {
        let whole = cut(STREAM, STREAM.len());
        assert_eq!(whole.len(), 4);
        assert_eq!(whole.concat(), STREAM);
        for step in 1..STREAM.len() {
            assert_eq!(cut(STREAM, step), whole, "pieces of {step} bytes");
        }
    }

    #[test]
    fn keep_alives_are_not_counted() {
        for (whole, expected) in [
            ("", 0),
            (": ping\n\n", 0),
            (": ping\n\n: ping\r\n\r\ndata: 1\n\n", 1),
            ("data: 1\n\n: ping\n\nevent: x\ndata: 2\n\n", 2),
        ] {
            assert_eq!(count(whole.as_bytes()), expected, "{whole:?}");
        }
    }

    #[test]
    fn a_broken_end_stays_behind() {
        let mut splitter = Splitter::default();
        assert_eq!(splitter.push(Bytes::from_static(b"data: 1\n\ndata: {")).expect("short").len(), 1);
        assert_eq!(splitter.rest, b"data: {"[..]);
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut splitter = Splitter::default();
        let piece = Bytes::from(vec![b'x'; 1024 * 1024]);
        let refused = (0..16).any(|_| splitter.push(piece.clone()).is_err());
        assert!(refused);
    }

    #[test]
    fn recorded_streams_pass_unchanged() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cases/vllm_sse");
        let mut streams = 0;
        for entry in std::fs::read_dir(folder).expect("recorded streams").flatten() {
            if entry.path().extension().is_none_or(|extension| extension != "sse") {
                continue;
            }
            let recorded = std::fs::read(entry.path()).expect("readable");
            for step in [1, 7, 100, 1_460, recorded.len()] {
                let relayed: Vec<u8> = cut(&recorded, step).into_iter().flat_map(without_internal).collect();
                assert!(relayed == recorded, "{:?} changes when cut into pieces of {step}", entry.path());
            }
            streams += 1;
        }
        assert!(streams > 0, "no stream in {folder}");
    }

    #[test]
    fn internal_members_leave_and_nothing_else_changes() {
        for (event, expected) in [
            ("data: {\"id\":\"1\",\"choices\":[]}\n\n", "data: {\"id\":\"1\",\"choices\":[]}\n\n"),
            (
                "data: {\"id\":\"1\",\"kv_transfer_params\":{\"a\":[1]},\"choices\":[ ]}\n\n",
                "data: {\"id\":\"1\",\"choices\":[ ]}\n\n",
            ),
            (
                "data: {\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"x\":1}\n\n",
                "data: {\"x\":1}\n\n",
            ),
            // Text that only mentions the name is the model's own and stays.
            (
                "data: {\"choices\":[{\"text\":\"kv_transfer_params\"}]}\n\n",
                "data: {\"choices\":[{\"text\":\"kv_transfer_params\"}]}\n\n",
            ),
            ("data: [DONE]\n\n", "data: [DONE]\n\n"),
            (
                "event: chunk\nid: 7\ndata: {\"kv_transfer_params\":{},\"x\":1}\n\n",
                "event: chunk\nid: 7\ndata: {\"x\":1}\n\n",
            ),
        ] {
            assert_eq!(without_internal(Bytes::from_static(event.as_bytes())), expected);
        }
    }
}
