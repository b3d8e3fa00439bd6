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
    /// come must be computed. Blocks that were named to the host and not given back stay as they are until
    /// [`Event::HostGone`] or [`Event::Attached`]: a host that lives may still copy into them, or from them to others.
    Detached {
        /// Which session.
        session: u64,
        /// Why.
        why: LinkEnd,
    },
    /// The host's process has ended: all blocks are the engine's own. Not said where it cannot be seen from here (it is
    /// in another PID namespace), or when the engine is attached again first.
    HostGone {
        /// Whose blocks.
        session: u64,
    },
    /// A try to attach again failed. Said of the first of a row.
    Waiting(String),
    /// Attached again, and all blocks are the engine's own: a host lets a rank in again only when it has no mapping of
    /// its slab left. Say everything through this session from here on.
    Attached(Session),
    /// The host will not have this engine again. The last event.
    GaveUp(AttachError),
}

/// The link is over for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the KV link is over: attach anew")]
pub struct LinkClosed;
