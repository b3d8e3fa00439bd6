//! The one queue of commands, bounded.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::command::{AttachError, Command, NotTaken};
use super::limits::{MAX_COMMANDS, MAX_ENGINES};
use crate::protocol::Peer;

/// What handles and the thread have in common.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    commands: VecDeque<Command>,
    /// Attached, about to be, or leaving.
    peers: BTreeSet<Peer>,
    /// No command is taken any more.
    stopping: bool,
    /// Commands that found no room.
    refused: u64,
}

impl Queue {
    pub fn put(&self, command: Command) -> Result<(), NotTaken> {
        self.lock().put(command)
    }

    /// One that a full queue takes too: there are no more of them than engines.
    pub fn put_in_any_case(&self, command: Command) -> Result<(), NotTaken> {
        let mut state = self.lock();
        if state.stopping {
            return Err(NotTaken::Stopped);
        }
        state.commands.push_back(command);
        Ok(())
    }

    /// Takes a peer's place and puts its command, both or neither.
    pub fn put_attach(&self, peer: Peer, command: Command) -> Result<(), AttachError> {
        let mut state = self.lock();
        let lives =
            state.peers.range(Peer { incarnation: 0, ..peer }..=Peer { incarnation: u64::MAX, ..peer });
        match lives.last() {
            Some(last) if *last == peer => return Err(AttachError::Attached),
            Some(last) if *last > peer => return Err(AttachError::Older { later: last.incarnation }),
            _ => {}
        }
        if state.peers.len() >= MAX_ENGINES {
            return Err(AttachError::TooMany);
        }
        state.put(command)?;
        state.peers.insert(peer);
        Ok(())
    }

    /// A peer has left.
    pub fn left(&self, peer: Peer) {
        self.lock().peers.remove(&peer);
    }

    /// Takes up to `count` commands into `into`; whether the exchange shall stop once none is left.
    pub fn take(&self, count: usize, into: &mut Vec<Command>) -> bool {
        let mut state = self.lock();
        let count = count.min(state.commands.len());
        into.extend(state.commands.drain(..count));
        state.stopping && state.commands.is_empty()
    }

    pub fn is_stopping(&self) -> bool {
        self.lock().stopping
    }

    pub fn stop(&self) {
        self.lock().stopping = true;
    }

    /// Takes no more commands, and drops those that wait: each of their answers says so.
    pub fn close(&self) {
        let left = {
            let mut state = self.lock();
            state.stopping = true;
            state.peers.clear();
            std::mem::take(&mut state.commands)
        };
        drop(left);
    }

    /// How many wait, and how many were refused since they were too many.
    pub fn counts(&self) -> (usize, u64) {
        let state = self.lock();
        (state.commands.len(), state.refused)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put(&mut self, command: Command) -> Result<(), NotTaken> {
        if self.stopping {
            return Err(NotTaken::Stopped);
        }
        if self.commands.len() >= MAX_COMMANDS {
            self.refused += 1;
            return Err(NotTaken::Full);
        }
        self.commands.push_back(command);
        Ok(())
    }
}
