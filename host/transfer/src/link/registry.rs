//! Who is attached, and who is about to be.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use sluice_engine_sdk::transport::{Connection, LEAVE_MS, LinkEnd, Until};
use sluice_engine_sdk::wire::{EngineId, Rank, Refusal, RefusalCode, ToEngine};

use super::admission::refusal;
use super::settings::MAX_HANDSHAKES;
use crate::memory::Slab;

/// A rank of an engine.
pub(super) type Who = (EngineId, Rank);

#[derive(Debug, Default)]
pub(super) struct Registry {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_stopping: bool,
    /// The last session and the last connection that got a number.
    numbers: u64,
    /// Sockets that are not attached yet, so that stopping can end them.
    arriving: BTreeMap<u64, UnixStream>,
    engines: BTreeMap<Who, Entry>,
}

#[derive(Debug)]
struct Entry {
    session: u64,
    phase: Phase,
    /// An engine that was not let go of yet has it mapped here.
    slab: Weak<Slab>,
}

#[derive(Debug)]
enum Phase {
    Welcoming,
    Attached(Arc<Connection>),
    /// Detached; the entry stays while the slab is mapped.
    Over,
}

impl Entry {
    fn is_past(&self) -> bool {
        matches!(self.phase, Phase::Over) && self.slab.strong_count() == 0
    }
}

impl Registry {
    /// Counts a connection in; nothing if there are too many.
    pub fn arrive(&self, socket: &UnixStream) -> Option<u64> {
        let handle = socket.try_clone().ok()?;
        let mut state = self.lock();
        if state.is_stopping || state.arriving.len() >= MAX_HANDSHAKES {
            return None;
        }
        state.numbers += 1;
        let number = state.numbers;
        state.arriving.insert(number, handle);
        Some(number)
    }

    /// Its handshake is over, however it went.
    pub fn arrived(&self, number: u64) {
        self.lock().arriving.remove(&number);
    }

    /// Gives an engine its session, if it is not attached already. One whose predecessor has hung up waits, until the
    /// deadline, for that one's last messages to be read: its events come first.
    pub fn reserve(
        &self,
        (who, name): (Who, &str),
        slab: &Arc<Slab>,
        max_engines: usize,
        until: Until<'_>,
    ) -> Result<u64, Refusal> {
        let mut state = self.lock();
        loop {
            if state.is_stopping {
                return Err(refusal(
                    RefusalCode::Closing,
                    "the host is going away; attach again when it is back",
                ));
            }
            state.engines.retain(|_, entry| !entry.is_past());
            let Some(entry) = state.engines.get(&who) else { break };
            let is_going = match &entry.phase {
                Phase::Attached(connection) => connection.is_hung_up(),
                Phase::Welcoming | Phase::Over => false,
            };
            let left = Duration::from_millis(until.left_ms());
            if !is_going || left.is_zero() {
                return Err(duplicate((name, who.1), entry));
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.engines.len() >= max_engines {
            let text =
                format!("{max_engines} engines are attached, which is all there may be; detach one first");
            return Err(refusal(RefusalCode::Full, &text));
        }
        state.numbers += 1;
        let session = state.numbers;
        let entry = Entry { session, phase: Phase::Welcoming, slab: Arc::downgrade(slab) };
        state.engines.insert(who, entry);
        Ok(session)
    }

    /// The engine has its welcome. Says no if the host stops meanwhile.
    pub fn enter(&self, who: Who, session: u64, connection: &Arc<Connection>) -> bool {
        let mut state = self.lock();
        let stops = state.is_stopping;
        if let Some(entry) = state.engines.get_mut(&who).filter(|entry| entry.session == session) {
            entry.phase = Phase::Attached(Arc::clone(connection));
        }
        !stops
    }

    /// Its session is over and its events are told.
    pub fn leave(&self, who: Who, session: u64) {
        let mut state = self.lock();
        if let Some(entry) = state.engines.get_mut(&who).filter(|entry| entry.session == session) {
            entry.phase = Phase::Over;
        }
        state.engines.retain(|_, entry| !entry.is_past());
        self.changed.notify_all();
    }

    /// Lets nobody in any more, and says goodbye to all. Returns when all have it, or after [`LEAVE_MS`] ends the rest.
    pub fn stop(&self, why: &str) {
        let mut state = self.lock();
        state.is_stopping = true;
        for socket in state.arriving.values() {
            // It fails where the other side is gone, which is as good.
            let _ = shutdown(socket, Shutdown::Both);
        }
        for entry in state.engines.values() {
            if let Phase::Attached(connection) = &entry.phase {
                connection.leave::<ToEngine>(why);
            }
        }
        self.changed.notify_all();
        let is_here = |entry: &Entry| matches!(entry.phase, Phase::Attached(_));
        let here = |state: &mut State| state.engines.values().any(is_here);
        let waited = self.changed.wait_timeout_while(state, Duration::from_millis(LEAVE_MS), here);
        for entry in waited.unwrap_or_else(PoisonError::into_inner).0.engines.values() {
            if let Phase::Attached(connection) = &entry.phase {
                connection.end(LinkEnd::Ended(why.to_owned()));
            }
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    /// Waits up to `wait` for the stop.
    pub fn stops_within(&self, wait: Duration) -> bool {
        let going = |state: &mut State| !state.is_stopping;
        let waited = self.changed.wait_timeout_while(self.lock(), wait, going);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_stopping
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn duplicate((engine, rank): (&str, Rank), entry: &Entry) -> Refusal {
    let text = if matches!(entry.phase, Phase::Over) {
        format!(
            "copies of rank {} of engine {engine:?} from before it was detached are not over yet; attach again in a while",
            rank.0
        )
    } else {
        format!(
            "an engine {engine:?} is attached already (its rank {}, session {}); give each engine a name of its own",
            rank.0, entry.session
        )
    };
    refusal(RefusalCode::Duplicate, &text)
}
