//! What a listener tells, and how engines are told.

use std::sync::Arc;
use std::time::Duration;

use sluice_engine_sdk::transport::{Connection, LinkEnd, PushError, SendFailure};
use sluice_engine_sdk::wire::{EncodeError, EngineId, Rank, Refusal, Role, ToEngine, ToHost};

use crate::layout::Geometry;
use crate::memory::Slab;

/// Something happened on a link. Events of one session come in order: attached, what was said, detached.
#[derive(Debug)]
pub enum LinkEvent {
    /// An engine gave its memory.
    Attached(Box<Attached>),
    /// An engine said something. Its blocks are within its slab, and its grid within its layers.
    Said {
        /// Which session.
        session: u64,
        /// What.
        message: ToHost,
    },
    /// An engine described a hold or transfer that cannot be, and was told so.
    Invalid {
        /// Which session.
        session: u64,
        /// What is wrong with it.
        text: String,
    },
    /// An engine is gone, or was cut off: its holds are lost. Nothing more comes of this session. The engine attaches
    /// again once every clone of its [`Attached::slab`] is dropped, so drop them when nothing copies any more.
    Detached {
        /// Which session.
        session: u64,
        /// Why.
        why: LinkEnd,
    },
    /// Somebody was not let in, and was told why.
    Refused {
        /// Whose process, as the kernel says; 0 from another PID namespace.
        pid: u32,
        /// Whose user.
        uid: u32,
        /// Why.
        refusal: Refusal,
    },
    /// The system does not let connections in. Said of the first of a row.
    NotAccepting(std::io::ErrorKind),
}

/// An engine (one rank of it) that is attached.
#[derive(Debug)]
pub struct Attached {
    /// The number of this attach, never given twice by a listener.
    pub session: u64,
    /// The version of the messages that both speak.
    pub version: u16,
    /// Which engine.
    pub engine: EngineId,
    /// The name that the router knows it by.
    pub name: String,
    /// Which life of it.
    pub incarnation: u64,
    /// Which of its ranks.
    pub rank: Rank,
    /// What it does.
    pub role: Role,
    /// What it serves.
    pub model: String,
    /// How its KV lies, checked.
    pub geometry: Geometry,
    /// Its KV.
    pub slab: Arc<Slab>,
    /// Its process, as the kernel says; 0 from another PID namespace.
    pub pid: u32,
    /// The way to it.
    pub sender: EngineSender,
}

/// The way to an engine. Never waits.
#[derive(Debug, Clone)]
pub struct EngineSender {
    pub(super) connection: Arc<Connection>,
}

/// Why an engine was not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// It is detached, or is from here on because it does not read.
    #[error("the engine is gone")]
    Gone,
    /// The message is longer than any may be.
    #[error(transparent)]
    Bound(#[from] EncodeError),
}

impl EngineSender {
    /// Queues a message. An engine that does not read, so that the queue is full, is cut off.
    ///
    /// # Errors
    /// If it is gone, or the message breaks a bound.
    pub fn send(&self, message: ToEngine) -> Result<(), SendError> {
        match self.connection.send(message, Duration::ZERO) {
            Ok(()) => Ok(()),
            Err(SendFailure::Bound(bound)) => Err(bound.into()),
            Err(SendFailure::Queue(PushError::Closed)) => Err(SendError::Gone),
            Err(SendFailure::Queue(PushError::Full { frames, .. })) => {
                self.connection.end(LinkEnd::NotReading { frames });
                Err(SendError::Gone)
            }
        }
    }

    /// Detaches it, behind all that was sent, and tells it why.
    pub fn detach(&self, why: &str) {
        self.connection.leave::<ToEngine>(why);
    }

    /// Frames that wait for it.
    #[must_use]
    pub fn queued_frames(&self) -> usize {
        self.connection.queued_frames()
    }
}
