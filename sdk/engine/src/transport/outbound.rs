//! Frames that wait to be written.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::wire::MAX_FRAME_BYTES;

/// Frames that wait for one peer: progress by layers of some hundred transfers.
pub const MAX_QUEUED_FRAMES: usize = 8_192;

/// Bytes that wait for one peer: 60 transfers of the longest prompts, registered at once.
pub const MAX_QUEUED_BYTES: usize = 12 << 20;

/// Bytes that one write call is offered; more would only be held twice.
const WRITE_BYTES: usize = 64 << 10;

const _: () = assert!(MAX_QUEUED_BYTES > MAX_FRAME_BYTES + 4);

/// Why a frame was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The peer reads too slowly.
    #[error("{frames} frames of {bytes} bytes wait for the peer, which does not read them")]
    Full {
        /// That wait.
        frames: usize,
        /// That wait.
        bytes: usize,
    },
    /// The connection is over.
    #[error("the connection is over")]
    Closed,
}

/// The queue to one peer. Pings and pongs have places of their own, so that a full queue is no silence, and a peer
/// that pings without end fills nothing.
#[derive(Debug, Default)]
pub struct Outbound {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    ping: Option<Vec<u8>>,
    pong: Option<Vec<u8>>,
    /// Somebody writes to the socket: whole frames, in order, and one at a time.
    is_written: bool,
    /// The first of the frames is the rest of one.
    is_cut: bool,
    is_closed: bool,
}

impl State {
    fn is_full(&self, more: usize) -> bool {
        self.frames.len() >= MAX_QUEUED_FRAMES || self.bytes + more > MAX_QUEUED_BYTES
    }

    fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.ping.is_none() && self.pong.is_none()
    }
}

impl Outbound {
    /// Queues a frame, after up to `wait` for room.
    ///
    /// # Errors
    /// If there is none, or the connection is over.
    pub fn push(&self, frame: Vec<u8>, wait: Duration) -> Result<(), PushError> {
        let full = |state: &mut State| !state.is_closed && state.is_full(frame.len());
        let waited = self.changed.wait_timeout_while(self.lock(), wait, full);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return Err(PushError::Closed);
        }
        if state.is_full(frame.len()) {
            return Err(PushError::Full { frames: state.frames.len(), bytes: state.bytes });
        }
        state.bytes += frame.len();
        state.frames.push_back(frame);
        self.changed.notify_all();
        Ok(())
    }

    /// Lets a sender write by itself, which saves the hop to the writer: if nothing waits and nobody writes. Whoever is
    /// let must say [`Outbound::end_writing`].
    pub fn begin_writing(&self) -> bool {
        let mut state = self.lock();
        let may = state.is_empty() && !state.is_written && !state.is_closed;
        state.is_written |= may;
        may
    }

    /// The socket is free. What it did not take goes before all else.
    pub fn end_writing(&self, rest: &[u8]) {
        let mut state = self.lock();
        state.is_written = false;
        if !rest.is_empty() {
            state.bytes += rest.len();
            state.frames.push_front(rest.to_vec());
            state.is_cut = true;
        }
        if !state.is_empty() || state.is_closed {
            self.changed.notify_all();
        }
    }

    /// Queues a ping before all else, in place of one that still waits.
    pub fn ping(&self, frame: Vec<u8>) {
        self.lock().ping = Some(frame);
        self.changed.notify_all();
    }

    /// Queues a pong before all else, in place of one that still waits.
    pub fn pong(&self, frame: Vec<u8>) {
        self.lock().pong = Some(frame);
        self.changed.notify_all();
    }

    /// Waits for something to be written and puts it into `batch`, whole frames, in order. Says whether there will
    /// be more: after closing what was queued still comes. What is popped is being written until
    /// [`Outbound::end_writing`].
    pub fn pop(&self, batch: &mut Vec<u8>) -> bool {
        batch.clear();
        let idle = |state: &mut State| state.is_written || (!state.is_closed && state.is_empty());
        let waited = self.changed.wait_while(self.lock(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        // The rest of a frame goes before all else.
        if std::mem::take(&mut state.is_cut)
            && let Some(rest) = state.frames.pop_front()
        {
            state.bytes -= rest.len();
            batch.extend(rest);
        }
        for urgent in [state.pong.take(), state.ping.take()].into_iter().flatten() {
            batch.extend(urgent);
        }
        let room =
            |batch: &Vec<u8>, frame: &Vec<u8>| batch.is_empty() || batch.len() + frame.len() <= WRITE_BYTES;
        while let Some(frame) = state.frames.pop_front_if(|frame| room(batch, frame)) {
            state.bytes -= frame.len();
            batch.extend(frame);
        }
        state.is_written = !batch.is_empty();
        self.changed.notify_all();
        !(state.is_closed && batch.is_empty())
    }

    /// Takes nothing more in.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Frames that wait.
    #[must_use]
    pub fn queued_frames(&self) -> usize {
        self.lock().frames.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_bounds_hold_and_what_was_queued_is_written_after_closing() {
        for (len, at_most) in [(1, MAX_QUEUED_FRAMES), (MAX_FRAME_BYTES, MAX_QUEUED_BYTES / MAX_FRAME_BYTES)]
        {
            let queue = Outbound::default();
            for _ in 0..at_most {
                queue.push(vec![1; len], Duration::ZERO).unwrap();
            }
            let refused = queue.push(vec![1; len], Duration::ZERO);
            assert!(
                matches!(refused, Err(PushError::Full { frames, .. }) if frames == at_most),
                "{refused:?}"
            );
            for _ in 0..1_000_000 / MAX_QUEUED_FRAMES {
                queue.ping(vec![2]);
                queue.pong(vec![3]);
            }
            queue.close();
            let (mut batch, mut written) = (Vec::new(), Vec::new());
            while queue.pop(&mut batch) {
                queue.end_writing(&[]);
                assert!(batch.len() <= WRITE_BYTES || batch.len() <= MAX_FRAME_BYTES + 2);
                written.append(&mut batch);
            }
            assert_eq!(written.len(), at_most * len + 2);
            assert_eq!(written[..2], [3, 2]);
            assert_eq!(queue.push(vec![1], Duration::ZERO), Err(PushError::Closed));
        }
    }

    #[test]
    fn who_writes_by_itself_overtakes_nobody_and_leaves_its_rest_first() {
        let queue = Outbound::default();
        assert!(queue.begin_writing());
        assert!(!queue.begin_writing(), "one at a time");
        queue.push(vec![4, 4], Duration::ZERO).unwrap();
        queue.ping(vec![9]);
        queue.end_writing(&[1, 2, 3]);
        assert!(!queue.begin_writing(), "others wait");
        let mut batch = Vec::new();
        assert!(queue.pop(&mut batch));
        assert_eq!(batch, [1, 2, 3, 9, 4, 4]);
        assert!(!queue.begin_writing(), "the writer has not written yet");
        queue.end_writing(&[]);
        assert!(queue.begin_writing());
        queue.end_writing(&[]);
        queue.close();
        assert!(!queue.begin_writing() && !queue.pop(&mut batch));
    }
}
