//! The listener's threads.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{Builder, Scope, scope};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use sluice_engine_sdk::transport::{
    Clock, Connection, LinkEnd, PeerProcess, Queue, Until, peer_process, wait_readable,
};
use sluice_engine_sdk::wire::{Answer, Refusal, RefusalCode, ToEngine, ToHost, Welcome};

use super::admission::{refusal, user};
use super::checks::{Wrong, check};
use super::event::{Attached, EngineSender, LinkEvent};
use super::handshake::{Candidate, Rejected, answer, candidate};
use super::place::Place;
use super::registry::{Registry, Who};
use super::settings::{MAX_HANDSHAKES, Settings};
use crate::layout::KvLayout;

/// The wait after the system refused a connection (no descriptors, no memory), in milliseconds.
const ACCEPT_PAUSE_MS: u64 = 100;
/// The longest wait for a connection, in milliseconds: the stop wakes it up.
const ACCEPT_WAIT_MS: u64 = 60_000;

/// Who takes events.
pub(super) enum Hearer {
    /// Whoever polls.
    Queue(Queue<LinkEvent>),
    /// This, on the thread of the engine that it is about.
    Call(Arc<dyn Fn(LinkEvent) + Send + Sync>),
}

impl fmt::Debug for Hearer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(events) => out.debug_tuple("Queue").field(events).finish(),
            Self::Call(_) => out.write_str("Call"),
        }
    }
}

/// What all threads of a listener share.
#[derive(Debug)]
pub(super) struct Host {
    pub place: Place,
    pub settings: Settings,
    pub hearer: Hearer,
    pub registry: Registry,
    pub clock: Arc<dyn Clock>,
}

impl Host {
    /// Accepts until the stop, and returns when all engines' threads have.
    pub fn accept_all(&self) {
        scope(|scope| {
            let mut was_refused = false;
            while !self.registry.is_stopping() {
                match self.accept() {
                    Ok(Some(socket)) => {
                        was_refused = false;
                        self.welcome_in(scope, socket);
                    }
                    Ok(None) => {}
                    Err(error) => {
                        let is_over = self.registry.stops_within(Duration::from_millis(ACCEPT_PAUSE_MS));
                        if !is_over && !std::mem::replace(&mut was_refused, true) {
                            self.tell(LinkEvent::NotAccepting(error.kind()));
                        }
                    }
                }
            }
        });
    }

    fn accept(&self) -> io::Result<Option<UnixStream>> {
        let socket = &self.place.socket;
        if !wait_readable(socket, ACCEPT_WAIT_MS)? {
            return Ok(None);
        }
        match accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(accepted) => Ok(Some(accepted.into())),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn welcome_in<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, socket: UnixStream) {
        let peer = match peer_process(&socket) {
            Ok(peer) => peer,
            Err(error) => return self.tell(LinkEvent::NotAccepting(error.kind())),
        };
        let own = rustix::process::geteuid().as_raw();
        if let Err(refusal) = user(peer.uid, own, &self.settings.other_uids) {
            return self.refuse(socket, peer, refusal);
        }
        let Some(number) = self.registry.arrive(&socket) else {
            let text = format!("{MAX_HANDSHAKES} engines are attaching at this moment; attach again");
            return self.refuse(socket, peer, refusal(RefusalCode::Full, &text));
        };
        let thread = Builder::new().name("kv-link-engine".to_owned());
        let spawned = thread.spawn_scoped(scope, move || self.connection(socket, number, peer));
        if let Err(error) = spawned {
            // The socket went with the closure: whoever it was tries again.
            self.registry.arrived(number);
            self.tell(LinkEvent::NotAccepting(error.kind()));
        }
    }

    /// A connection's life.
    fn connection(&self, socket: UnixStream, number: u64, peer: PeerProcess) {
        let until = Until::after(self.clock.as_ref(), self.settings.handshake_ms);
        let admitted = self.admit(&socket, until);
        self.registry.arrived(number);
        match admitted {
            Ok((candidate, session)) => self.attached(socket, candidate, session, peer),
            Err(Rejected::Gone) => {}
            Err(Rejected::Refused(refusal)) => self.refuse(socket, peer, refusal),
        }
    }

    fn admit(&self, socket: &UnixStream, until: Until<'_>) -> Result<(Candidate, u64), Rejected> {
        let candidate = candidate(socket, until)?;
        let who = (candidate.hello.engine(), candidate.hello.rank);
        let session = self.registry.reserve(
            (who, &candidate.hello.name),
            &candidate.slab,
            self.settings.max_engines,
            until,
        )?;
        let welcome = Welcome {
            version: candidate.acceptable.version,
            session,
            ping_ms: u32::try_from(self.settings.pace.ping_ms).unwrap_or(u32::MAX),
            silence_ms: u32::try_from(self.settings.pace.silence_ms).unwrap_or(u32::MAX),
            max_open: self.settings.max_open,
        };
        if answer(socket, &Answer::Welcome(welcome), until).is_err() {
            drop(candidate);
            self.registry.leave(who, session);
            return Err(Rejected::Gone);
        }
        Ok((candidate, session))
    }

    fn attached(&self, socket: UnixStream, candidate: Candidate, session: u64, peer: PeerProcess) {
        let Candidate { hello, acceptable, slab } = candidate;
        let who: Who = (hello.engine(), hello.rank);
        let connection = Arc::new(Connection::new(socket, self.settings.pace, Arc::clone(&self.clock)));
        let layout = *acceptable.geometry.layout();
        let attached = Box::new(Attached {
            session,
            version: acceptable.version,
            engine: hello.engine(),
            name: hello.name,
            incarnation: hello.incarnation,
            rank: hello.rank,
            role: hello.role,
            model: hello.model,
            geometry: acceptable.geometry,
            slab,
            pid: peer.pid,
            sender: EngineSender { connection: Arc::clone(&connection) },
        });
        if self.registry.enter(who, session, &connection) {
            self.tell(LinkEvent::Attached(attached));
            let why = self.serve(&connection, session, &layout);
            self.tell(LinkEvent::Detached { session, why });
        }
        // The last of the socket goes with the entry: whoever attaches after that finds nothing of it.
        drop(connection);
        self.registry.leave(who, session);
    }

    fn serve(&self, connection: &Connection, session: u64, layout: &KvLayout) -> LinkEnd {
        scope(|scope| {
            let writer = Builder::new().name("kv-link-writer".to_owned());
            if let Err(error) = writer.spawn_scoped(scope, || connection.write_out()) {
                connection.end(LinkEnd::Socket(error.kind()));
            }
            connection.read_in(|message: ToHost| self.take(connection, session, layout, message))
        })
    }

    fn take(
        &self,
        connection: &Connection,
        session: u64,
        layout: &KvLayout,
        message: ToHost,
    ) -> Result<(), LinkEnd> {
        match check(&message, layout) {
            Ok(()) => self.tell(LinkEvent::Said { session, message }),
            Err(Wrong::Report(text)) => return Err(LinkEnd::Wrong(text)),
            Err(Wrong::Description(subject, text)) => {
                let why = sluice_engine_sdk::wire::Refused::Invalid;
                let sender = connection.send(ToEngine::Refused { subject, why }, Duration::ZERO);
                if sender.is_err() {
                    return Err(LinkEnd::NotReading { frames: connection.queued_frames() });
                }
                self.tell(LinkEvent::Invalid { session, text });
            }
        }
        Ok(())
    }

    fn refuse(&self, socket: UnixStream, peer: PeerProcess, refusal: Refusal) {
        // An empty socket takes so few bytes at once, and nobody waits for a peer that is refused.
        let _ = answer(&socket, &Answer::Refusal(refusal.clone()), Until::after(self.clock.as_ref(), 0));
        drop(socket);
        self.tell(LinkEvent::Refused { pid: peer.pid, uid: peer.uid, refusal });
    }

    /// Waits until it is taken: the listener's owner decides how fast engines are read. When it has stopped nobody listens.
    fn tell(&self, event: LinkEvent) {
        match &self.hearer {
            Hearer::Queue(events) => drop(events.push(event)),
            Hearer::Call(hear) if !self.registry.is_stopping() => hear(event),
            Hearer::Call(_) => {}
        }
    }
}
