//! The slabs that posts to one peer may touch, where both sides are mapped in this process.

use std::sync::Arc;

use super::{MAX_POST_COPIES, Post, PostError, RegionId, Verb};
use crate::layout::ByteCopy;
use crate::memory::{OutOfRange, Slab};

/// What a peer is opened with. Nothing else is reachable by its posts.
#[derive(Debug, Clone, Default)]
pub struct Endpoint {
    /// Ours, by region.
    pub local: Vec<Arc<Slab>>,
    /// The peer's, by region.
    pub remote: Vec<Arc<Slab>>,
}

/// A post whose every copy lies within its slabs.
#[derive(Debug)]
pub(super) struct Checked {
    pub source: Arc<Slab>,
    pub sink: Arc<Slab>,
    /// Bytes of all copies.
    pub bytes: u64,
}

impl Endpoint {
    /// A peer may lie about where its blocks are; its copies are refused here, before any byte moves.
    pub(super) fn check(&self, post: &Post) -> Result<Checked, PostError> {
        if post.copies.len() > MAX_POST_COPIES {
            return Err(PostError::TooManyCopies { copies: post.copies.len() });
        }
        let local = region(&self.local, "local", post.local)?;
        let remote = region(&self.remote, "remote", post.remote)?;
        let (source, sink) = match post.verb {
            Verb::Read => (remote, local),
            Verb::Write => (local, remote),
        };
        let mut bytes = 0_u64;
        for (index, copy) in post.copies.iter().enumerate() {
            check_copy(source, sink, copy).map_err(|(side, OutOfRange { offset, len, bytes })| {
                PostError::OutOfRange { index, side, offset, len, bytes }
            })?;
            bytes += copy.len;
        }
        Ok(Checked { source: Arc::clone(source), sink: Arc::clone(sink), bytes })
    }
}

fn check_copy(source: &Slab, sink: &Slab, copy: &ByteCopy) -> Result<(), (&'static str, OutOfRange)> {
    source.check(copy.source_offset, copy.len).map_err(|beyond| ("source", beyond))?;
    sink.check(copy.sink_offset, copy.len).map_err(|beyond| ("sink", beyond))
}

fn region<'a>(slabs: &'a [Arc<Slab>], side: &'static str, id: RegionId) -> Result<&'a Arc<Slab>, PostError> {
    slabs.get(id.0 as usize).ok_or(PostError::Region { side, region: id.0 })
}
