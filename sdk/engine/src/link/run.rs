//! The link's thread: reads while it is attached, and attaches again.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::attach::{AttachError, Engine, Settings, attach};
use super::event::Event;
use super::host_process::{DYING_MS, HostProcess};
use super::session::Session;
use crate::slab::Slab;
use crate::transport::{Clock, Connection, LEAVE_MS, LinkEnd, Pace, Queue, Until};
use crate::wire::{ToEngine, ToHost};

/// The wait after the first failed try to attach, in milliseconds; doubled after each further one.
const FIRST_PAUSE_MS: u64 = 20;
/// The longest such wait, in milliseconds: a host that is back has its engines within it.
const LONGEST_PAUSE_MS: u64 = 2_000;

/// What a host is told by an engine that goes.
const LEAVES: &str = "the engine leaves";

/// What the engine's threads and the link's thread share.
#[derive(Debug)]
pub(super) struct Shared {
    path: PathBuf,
    engine: Engine,
    slab: Arc<Slab>,
    settings: Settings,
    clock: Arc<dyn Clock>,
    pub(super) events: Queue<Event>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    current: Option<Session>,
    is_stopping: bool,
    /// Tries so far: each has an incarnation of its own.
    tries: u64,
}

impl Shared {
    pub(super) fn new(
        path: PathBuf,
        engine: Engine,
        slab: Arc<Slab>,
        settings: Settings,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (events, state, changed) = (Queue::new(settings.events), Mutex::default(), Condvar::new());
        Self { path, engine, slab, settings, clock, events, state, changed }
    }

    /// Ends the thread soon: at once if it is attached, and after one try to attach at the latest.
    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.is_stopping = true;
        if let Some(session) = &state.current {
            session.connection.leave::<ToHost>(LEAVES);
        }
        self.changed.notify_all();
        drop(state);
        self.events.close();
        // A host that does not read must not hold the engine up.
        let here = |state: &mut State| state.current.is_some();
        let waited = self.changed.wait_timeout_while(self.lock(), Duration::from_millis(LEAVE_MS), here);
        if let Some(session) = &waited.unwrap_or_else(PoisonError::into_inner).0.current {
            session.connection.end(LinkEnd::Ended(LEAVES.to_owned()));
        }
    }

    /// For the first time. No try begins after `limit_ms`.
    pub(super) fn attach_first(&self, limit_ms: u64) -> Result<Session, AttachError> {
        let whole = Until::after(self.clock.as_ref(), limit_ms);
        self.attach_while(|_| whole.left_ms())
    }

    /// For as long as it takes, and says meanwhile what becomes of the former host.
    fn attach_again(&self, former: &Session) -> Result<Session, AttachError> {
        let session = former.number();
        let (mut is_gone, mut is_told) = (false, false);
        self.attach_while(|error| {
            // Who takes no events any more is stopping, which the next pause sees.
            if !is_gone && former.host.is_gone_within(0) {
                is_gone = true;
                let _ = self.events.push(Event::HostGone { session });
            }
            if !std::mem::replace(&mut is_told, true) {
                let _ = self.events.push(Event::Waiting(error.to_string()));
            }
            u64::MAX
        })
    }

    /// Until attached, stopped, refused for good, or there is no time left: `left_ms` is asked after each failure.
    fn attach_while(&self, mut left_ms: impl FnMut(&AttachError) -> u64) -> Result<Session, AttachError> {
        let mut pause_ms = FIRST_PAUSE_MS;
        loop {
            let error = match self.attach_once() {
                Ok(session) => return Ok(session),
                Err(error) if error.is_passing() => error,
                Err(error) => return Err(error),
            };
            let left_ms = left_ms(&error);
            if left_ms == 0 || self.pause(pause_ms.min(left_ms)) {
                return Err(error);
            }
            pause_ms = (pause_ms * 2).min(LONGEST_PAUSE_MS);
        }
    }

    fn attach_once(&self) -> Result<Session, AttachError> {
        let tries = {
            let mut state = self.lock();
            state.tries += 1;
            state.tries
        };
        let incarnation = self.engine.incarnation.saturating_add(tries - 1);
        let until = Until::after(self.clock.as_ref(), self.settings.try_ms);
        let (socket, welcome) = attach(&self.path, &self.engine, incarnation, &self.slab, until)?;
        let host = Arc::new(HostProcess::of(&socket));
        let pace = Pace { ping_ms: welcome.ping_ms.into(), silence_ms: welcome.silence_ms.into() };
        let connection = Arc::new(Connection::new(socket, pace, Arc::clone(&self.clock)));
        Ok(Session { connection, host, welcome, send_wait: Duration::from_millis(self.settings.send_ms) })
    }

    /// The thread's life, from a first session that was entered.
    pub(super) fn run(&self, first: Session) {
        let mut session = first;
        while let Some(next) = self.once(&session) {
            session = next;
        }
        self.events.close();
    }

    /// One session, and then the next one, if there is to be any.
    fn once(&self, session: &Session) -> Option<Session> {
        let why = self.serve(session);
        self.lock().current = None;
        self.changed.notify_all();
        if self.lock().is_stopping {
            return None;
        }
        self.events.push(Event::Detached { session: session.number(), why }).ok()?;
        if !self.settings.reattach {
            if session.host.is_gone_within(DYING_MS) {
                let _ = self.events.push(Event::HostGone { session: session.number() });
            }
            return None;
        }
        match self.attach_again(session) {
            Ok(next) if self.enter(&next) => {
                // Who stops meanwhile has said goodbye to it, and that is still to be sent.
                let _ = self.events.push(Event::Attached(next.clone()));
                Some(next)
            }
            Ok(_) => None,
            Err(error) => {
                let _ = self.events.push(Event::GaveUp(error));
                None
            }
        }
    }

    fn serve(&self, session: &Session) -> LinkEnd {
        let connection = &session.connection;
        std::thread::scope(|scope| {
            let writer = std::thread::Builder::new().name("sluice-link-out".to_owned());
            if let Err(error) = writer.spawn_scoped(scope, || connection.write_out()) {
                connection.end(LinkEnd::Socket(error.kind()));
            }
            connection.read_in(|message: ToEngine| {
                let told = self.events.push(Event::Host(message));
                told.map_err(|_| LinkEnd::Ended(LEAVES.to_owned()))
            })
        })
    }

    /// Makes it the one that stopping ends; says no if it is too late for that.
    pub(super) fn enter(&self, session: &Session) -> bool {
        let mut state = self.lock();
        if state.is_stopping {
            session.connection.end(LinkEnd::Ended(LEAVES.to_owned()));
        } else {
            state.current = Some(session.clone());
        }
        !state.is_stopping
    }

    /// Whether it was stopped meanwhile.
    fn pause(&self, ms: u64) -> bool {
        let going = |state: &mut State| !state.is_stopping;
        let waited = self.changed.wait_timeout_while(self.lock(), Duration::from_millis(ms), going);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_stopping
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
