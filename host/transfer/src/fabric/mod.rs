//! Moves bytes between slabs of this process and slabs of a peer.
//!
//! A fabric copies and says when it has; it decides nothing. It has no idea of requests, epochs or time: the
//! caller's deadlines end the caller's waits, and whether a peer lives is found out elsewhere. What a fabric does
//! guarantee is an end: once [`Fabric::close_peer`] has returned `Ok`, nothing of that peer's posts lands any more.

#[cfg(test)]
mod contract;
mod counters;
mod endpoint;
mod local;
mod refusals;
mod shm;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use counters::{Figures, PeerCounters, VerbCounters};
pub use endpoint::Endpoint;
pub use local::{Fault, LocalFabric};
pub use refusals::{CloseError, OpenError, PostError, Refused};
pub use shm::{ShmFabric, ShmSettings, StartError};

use crate::layout::ByteCopy;
pub use crate::protocol::Verb;

/// The most copies of one post: 24 MB of them. A longer plan goes as several posts.
pub const MAX_POST_COPIES: usize = 1 << 20;
/// The most peers that are open at a time, in one fabric.
pub const MAX_PEERS: usize = 4_096;

/// Whoever a fabric was opened towards; the caller's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// One post; the caller's number, unique among a peer's posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Which of an endpoint's slabs, on either side: its position in the list that the peer was opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u32);

/// Copies that are begun together and end together, in no order among themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// With whom.
    pub peer: PeerId,
    /// Told again when it ends.
    pub ticket: Ticket,
    /// Which way: READ from the peer's slab to ours, WRITE from ours to the peer's.
    pub verb: Verb,
    /// Our slab.
    pub local: RegionId,
    /// The peer's slab.
    pub remote: RegionId,
    /// What to copy. Source and sink are as the verb says.
    pub copies: Vec<ByteCopy>,
    /// How many there were before neighbours were joined, for the counters.
    pub runs_before: u64,
}

/// The end of a post. Each post that was taken has one, lost completions of a faulty fabric aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// With whom.
    pub peer: PeerId,
    /// The post's.
    pub ticket: Ticket,
    /// The post's.
    pub verb: Verb,
    /// `Ok`: all bytes are in place. An error says nothing of which bytes are, and more may still land unless it is
    /// [`Failure::PeerClosed`].
    pub result: Result<(), Failure>,
    /// The post's copies, to use their memory again.
    pub copies: Vec<ByteCopy>,
}

/// Why a post failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The peer was closed first. Nothing lands any more.
    #[error("the peer was closed before all was copied")]
    PeerClosed,
    /// The fabric could not.
    #[error("the fabric failed: {0}")]
    Fabric(&'static str),
}

/// One way to move bytes. How a peer is opened is each fabric's own: it takes what that fabric needs to reach it.
pub trait Fabric: Send + Sync + fmt::Debug {
    /// Begins copies. Returns at once.
    fn post(&self, post: Post) -> Result<(), Refused>;

    /// Puts ends of posts into `into`, waiting at most `wait` for the first. Returns how many.
    fn poll(&self, into: &mut Vec<Completion>, wait: Duration) -> usize;

    /// Ends the wait of a poll, or of the next one: its caller has something else to do.
    fn wake(&self);

    /// Ends all posts of a peer and forgets it. Waits at most `wait` for copies under way. After `Ok` nothing of
    /// its posts lands any more, and each of them has its completion.
    fn close_peer(&self, peer: PeerId, wait: Duration) -> Result<(), CloseError>;

    /// What went to and from a peer that is open.
    fn counters(&self, peer: PeerId) -> Option<Arc<PeerCounters>>;

    /// Posts under way, and ended ones that were not polled yet.
    fn posts(&self) -> usize;
}
