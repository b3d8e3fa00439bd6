//! What an engine is told.

use super::attach::AttachError;
use super::session::Session;
use crate::transport::LinkEnd;
use crate::wire::ToEngine;

/// Something happened. What the host says between an attach and the detach after it is about that session.
#[derive(Debug)]
pub enum Event {
    /// The host said something.
    Host(ToEngine),
    /// The host is gone, or the connection to it. All holds and transfers of the session are over, and what was to
    /// come must be computed. Blocks of holds are the engine's again. Blocks of receives that were neither completed
    /// nor freed are so if the host's process is gone; else a copy may still land in them until the next
    /// [`Event::Attached`]: a host lets an engine attach again only when it has no mapping of the slab left. The link
    /// goes on trying to attach.
    Detached {
        /// Which session.
        session: u64,
        /// Why.
        why: LinkEnd,
        /// Whether the host's process is known to have ended.
        is_host_gone: bool,
    },
    /// A try to attach again failed. Said of the first of a row.
    Waiting(AttachError),
    /// Attached again; nothing of an earlier session can land in the slab any more. Say everything through this session from here on.
    Attached(Session),
    /// The host will not have this engine again. The last event.
    GaveUp(AttachError),
}

/// The link is over for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the KV link is over: attach anew")]
pub struct LinkClosed;
