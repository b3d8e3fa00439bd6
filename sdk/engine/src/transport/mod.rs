//! What both ends of a link do with its socket: bounded queues, liveness, descriptors. For the host's end; engines
//! use [`crate::EngineLink`].

mod clock;
mod connection;
mod liveness;
mod outbound;
mod peer;
mod queue;
mod socket;

pub use clock::{Clock, Monotonic};
pub use connection::{Connection, LEAVE_MS, LinkEnd, Pace, SendFailure};
pub use liveness::{Due, Liveness};
pub use outbound::{MAX_QUEUED_BYTES, MAX_QUEUED_FRAMES, Outbound, PushError};
pub use peer::{PeerProcess, peer_process};
pub use queue::{Closed, Queue};
pub use socket::{
    MAX_DESCRIPTORS, Until, receive_with_descriptors, send_all, send_with_descriptor, wait_readable,
};

/// A text cut so that it fits a message.
#[must_use]
pub fn sentence(text: &str) -> String {
    let end = text.floor_char_boundary(crate::wire::MAX_TEXT_BYTES);
    text[..end].to_owned()
}
