//! What a fabric does not do, and why.

use super::{MAX_PEERS, MAX_POST_COPIES, PeerId, Post};

/// A post that was not taken, handed back.
#[derive(Debug, thiserror::Error)]
#[error("post {} to peer {} was not taken: {cause}", post.ticket.0, post.peer.0)]
pub struct Refused {
    /// As it was given.
    pub post: Post,
    /// Why.
    pub cause: PostError,
}

/// Why a post is not taken. Nothing of it was copied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// Back-pressure: poll, then try again.
    #[error("{posts} posts are under way or not polled yet, the limit")]
    Full {
        /// The limit.
        posts: usize,
    },
    /// No such peer is open, or it is being closed.
    #[error("the peer is not open")]
    NotOpen,
    /// The endpoint has no such slab.
    #[error("no {side} region {region}")]
    Region {
        /// `local` or `remote`.
        side: &'static str,
        /// Asked for.
        region: u32,
    },
    /// A copy that leaves its slab.
    #[error("copy {index}: {len} bytes at {offset} of the {side} slab, which has {bytes}")]
    OutOfRange {
        /// Which copy.
        index: usize,
        /// `source` or `sink`.
        side: &'static str,
        /// Asked for.
        offset: u64,
        /// Asked for.
        len: u64,
        /// There are.
        bytes: u64,
    },
    /// More than [`MAX_POST_COPIES`].
    #[error("{copies} copies, at most {MAX_POST_COPIES}; post them in parts")]
    TooManyCopies {
        /// Given.
        copies: usize,
    },
}

/// Why a peer cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is open, or not closed yet.
    #[error("peer {} is open already; close it first", .0.0)]
    Open(PeerId),
    /// More than [`MAX_PEERS`].
    #[error("{MAX_PEERS} peers are open, the limit")]
    TooMany,
}

/// Why a peer is not closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseError {
    /// It takes no more posts, but bytes may still land: close it again, and free nothing meanwhile.
    #[error("peer {} still has {copying} copies under way; close it again", peer.0)]
    Copying {
        /// Which.
        peer: PeerId,
        /// Pieces of work that a thread is at.
        copying: usize,
    },
    /// It is not open.
    #[error("peer {} is not open", .0.0)]
    NotOpen(PeerId),
}
