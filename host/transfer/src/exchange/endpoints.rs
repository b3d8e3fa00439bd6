//! One endpoint for each two engines that exchange KV, by a key of its own.
//!
//! An endpoint is two peers of the fabric, one for each side's posts. Closing it ends both sides' operations between
//! the two, and nobody else's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use crate::fabric::{CloseError, Endpoint as Reach, Fabric, LocalFabric, OpenError, PeerId, ShmFabric};
use crate::layout::{Mismatch, Pair};
use crate::protocol::{Key, Peer};

/// A fabric that reaches slabs which are mapped in this process.
pub trait HostFabric: Fabric {
    /// Lets posts of a peer reach these slabs.
    fn open_peer(&self, peer: PeerId, endpoint: Reach) -> Result<(), OpenError>;
}

impl HostFabric for LocalFabric {
    fn open_peer(&self, peer: PeerId, endpoint: Reach) -> Result<(), OpenError> {
        Self::open_peer(self, peer, endpoint)
    }
}

impl HostFabric for ShmFabric {
    fn open_peer(&self, peer: PeerId, endpoint: Reach) -> Result<(), OpenError> {
        Self::open_peer(self, peer, endpoint)
    }
}

/// Between two engines, the lower one first.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub key: Key,
    pub sides: (Peer, Peer),
    /// From the lower to the higher, and back.
    pairs: (Arc<Pair>, Arc<Pair>),
    pub closing: bool,
}

/// All endpoints.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    open: BTreeMap<(Peer, Peer), Endpoint>,
    /// Keys ever given: an endpoint that is opened again has another one.
    keys: u64,
}

/// Why there is none.
#[derive(Debug)]
pub(super) enum NoEndpoint {
    Mismatch(Mismatch),
    Open(OpenError),
    Closing,
}

impl Endpoint {
    /// The layouts as seen from a source.
    pub fn pair(&self, source: Peer) -> &Arc<Pair> {
        if source == self.sides.0 { &self.pairs.0 } else { &self.pairs.1 }
    }

    /// The fabric's peer for posts of one side.
    pub fn posts_of(&self, poster: Peer) -> PeerId {
        PeerId(self.key.0 * 2 + u64::from(poster == self.sides.1))
    }

    /// Whether it is closed with this call, for good.
    pub fn close(&self, fabric: &dyn HostFabric) -> bool {
        let closed = |poster| {
            let closed = fabric.close_peer(self.posts_of(poster), Duration::ZERO);
            matches!(closed, Ok(()) | Err(CloseError::NotOpen(_)))
        };
        // Both, whatever becomes of the first: neither takes posts from now on.
        let (one, other) = (closed(self.sides.0), closed(self.sides.1));
        one && other
    }
}

impl Endpoints {
    /// The endpoint between a source and a sink, opened if there is none.
    pub fn open(
        &mut self,
        fabric: &dyn HostFabric,
        (source, source_engine): (Peer, &Engine),
        (sink, sink_engine): (Peer, &Engine),
    ) -> Result<&Endpoint, NoEndpoint> {
        let sides = ordered(source, sink);
        if !self.open.contains_key(&sides) {
            let (from, to) = (source_engine.geometry, sink_engine.geometry);
            // The way that is wanted comes first, since a refusal names both sides.
            let forth = Arc::new(Pair::new(from, to).map_err(NoEndpoint::Mismatch)?);
            let back = Arc::new(Pair::new(to, from).map_err(NoEndpoint::Mismatch)?);
            let pairs = if sides.0 == source { (forth, back) } else { (back, forth) };
            let endpoint = Endpoint { key: Key(self.keys), sides, pairs, closing: false };
            self.keys += 1;
            let reach = |local: &Engine, remote: &Engine| Reach {
                local: local.slabs.clone(),
                remote: remote.slabs.clone(),
            };
            let first = endpoint.posts_of(source);
            fabric.open_peer(first, reach(source_engine, sink_engine)).map_err(NoEndpoint::Open)?;
            let second = fabric.open_peer(endpoint.posts_of(sink), reach(sink_engine, source_engine));
            if let Err(refused) = second {
                // Nothing was posted by the first, so nothing keeps it from closing.
                let _ = fabric.close_peer(first, Duration::ZERO);
                return Err(NoEndpoint::Open(refused));
            }
            self.open.insert(sides, endpoint);
        }
        self.open.get(&sides).filter(|endpoint| !endpoint.closing).ok_or(NoEndpoint::Closing)
    }

    /// The endpoint between two, unless it is another by now or being closed.
    pub fn usable(&self, one: Peer, other: Peer, key: Key) -> Option<&Endpoint> {
        self.open.get(&ordered(one, other)).filter(|endpoint| endpoint.key == key && !endpoint.closing)
    }

    /// Begins to close; `false` if there is none.
    pub fn close(&mut self, one: Peer, other: Peer) -> bool {
        let endpoint = self.open.get_mut(&ordered(one, other));
        endpoint.is_some_and(|endpoint| {
            endpoint.closing = true;
            true
        })
    }

    /// Begins to close all of one engine.
    pub fn close_all_of(&mut self, peer: Peer) {
        let of = |endpoint: &&mut Endpoint| endpoint.sides.0 == peer || endpoint.sides.1 == peer;
        self.open.values_mut().filter(of).for_each(|endpoint| endpoint.closing = true);
    }

    /// Whether an engine has any.
    pub fn has(&self, peer: Peer) -> bool {
        self.open.keys().any(|sides| sides.0 == peer || sides.1 == peer)
    }

    /// Closes what is to be closed, as far as nothing is at work there; returns what is closed now.
    pub fn go_on_closing(&mut self, fabric: &dyn HostFabric) -> Vec<Endpoint> {
        let done = self.open.extract_if(.., |_, endpoint| endpoint.closing && endpoint.close(fabric));
        done.map(|(_, endpoint)| endpoint).collect()
    }

    /// Whether some are still being closed.
    pub fn are_closing(&self) -> bool {
        self.open.values().any(|endpoint| endpoint.closing)
    }

    pub fn count(&self) -> usize {
        self.open.len()
    }
}

fn ordered(one: Peer, other: Peer) -> (Peer, Peer) {
    (one.min(other), one.max(other))
}
