//! One attach to one host.

use std::sync::Arc;
use std::time::Duration;

use super::host_process::HostProcess;
use crate::transport::{Connection, PushError, SendFailure};
use crate::wire::{Attempt, EncodeError, NewHold, NewReceive, Reason, Rect, ToHost, TransferId, Welcome};

/// What an engine says to its host while it is attached. After a detach everything sent through it fails, so that
/// nothing that was meant for one host reaches the next.
#[derive(Debug, Clone)]
pub struct Session {
    pub(super) connection: Arc<Connection>,
    pub(super) host: Arc<HostProcess>,
    pub(super) welcome: Welcome,
    pub(super) send_wait: Duration,
}

/// Why the host was not told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The session is over; an event says why.
    #[error("this session with the host is over: use the one of the next `Event::Attached`")]
    Over,
    /// The host does not read fast enough.
    #[error("{frames} messages wait for the host, none was taken for {waited_ms} ms: try again later")]
    Busy {
        /// That wait.
        frames: usize,
        /// How long there was no room, in milliseconds.
        waited_ms: u64,
    },
    /// The message is longer than any may be.
    #[error(transparent)]
    Bound(#[from] EncodeError),
}

impl Session {
    /// Its number, which no other of the same host process has.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.welcome.session
    }

    /// What the host answered.
    #[must_use]
    pub fn welcome(&self) -> Welcome {
        self.welcome
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.connection.ended().is_some()
    }

    /// Producer: blocks are about to be computed and are kept for a consumer.
    ///
    /// # Errors
    /// If the host was not told.
    pub fn hold(&self, hold: NewHold) -> Result<(), SendError> {
        self.say(ToHost::Hold { hold })
    }

    /// Producer: a part of a hold lies in the slab.
    ///
    /// # Errors
    /// If the host was not told.
    pub fn ready(&self, id: TransferId, rect: Rect) -> Result<(), SendError> {
        self.say(ToHost::Ready { id, rect })
    }

    /// Producer: all of a hold lies in the slab; its lease begins.
    ///
    /// # Errors
    /// If the host was not told.
    pub fn filled(&self, id: TransferId) -> Result<(), SendError> {
        self.say(ToHost::Filled { id })
    }

    /// A hold is still wanted: a heartbeat.
    ///
    /// # Errors
    /// If the host was not told.
    pub fn renew(&self, id: TransferId) -> Result<(), SendError> {
        self.say(ToHost::Renew { id })
    }

    /// Nobody will read a hold.
    ///
    /// # Errors
    /// If the host was not told.
    pub fn release(&self, id: TransferId) -> Result<(), SendError> {
        self.say(ToHost::Release { id })
    }

    /// Consumer: bring blocks.
    ///
    /// # Errors
    /// If the host was not told.
    pub fn receive(&self, receive: NewReceive) -> Result<(), SendError> {
        self.say(ToHost::Receive { receive })
    }

    /// Consumer: no more of it. Once is enough; again changes nothing.
    ///
    /// # Errors
    /// If the host was not told.
    pub fn abort(&self, attempt: Attempt) -> Result<(), SendError> {
        self.say(ToHost::Abort { attempt, reason: Reason::Cancelled })
    }

    /// Producer: whether the blocks of a [`crate::wire::ToEngine::Confirm`] were all in that use until now.
    ///
    /// # Errors
    /// If the host was not told.
    pub fn confirmed(&self, attempt: Attempt, number: u32, held: bool) -> Result<(), SendError> {
        self.say(ToHost::Confirmed { attempt, number, held })
    }

    fn say(&self, message: ToHost) -> Result<(), SendError> {
        self.connection.send(message, self.send_wait).map_err(|failure| match failure {
            SendFailure::Bound(bound) => SendError::Bound(bound),
            SendFailure::Queue(PushError::Closed) => SendError::Over,
            SendFailure::Queue(PushError::Full { frames, .. }) => {
                SendError::Busy { frames, waited_ms: self.send_wait.as_millis() as u64 }
            }
        })
    }
}
