//! Endpoints that are opened, closed and opened again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::endpoints::{Endpoints, HostFabric, NoEndpoint};
use super::engine::{Books, Engine};
use super::events::{Teller, events};
use crate::fabric::{
    CloseError, Completion, Endpoint as Reach, Fabric, Fault, LocalFabric, OpenError, PeerCounters, PeerId,
    Post, PostError, Refused,
};
use crate::layout::{Element, Geometry, HeadOrder, KvLayout, Order, Planes};
use crate::memory::{BlockTable, HugePages, Slab};
use crate::protocol::limits::Limits;
use crate::protocol::{EngineId, Peer, Transfers};

fn engine(order: Order) -> Engine {
    let layout = KvLayout {
        blocks: 2,
        block_tokens: 4,
        layers: 1,
        planes: Planes::Latent,
        kv_heads: 1,
        head_dim: 4,
        element: Element::Int8,
        tp_size: 1,
        order,
        head_order: HeadOrder::TokensOutermost,
    };
    Engine {
        geometry: Geometry::new(layout).unwrap(),
        slabs: vec![Arc::new(Slab::create(32, HugePages::FromKernelOnly).unwrap())],
        books: Books::Here(Arc::new(Mutex::new(BlockTable::new(2).unwrap()))),
        asked: BTreeMap::new(),
        teller: Teller { ears: Box::new(events(1).0), is_taken: true },
        transfers: Transfers::new(Limits::default()),
        holds: BTreeMap::new(),
        sinks: BTreeMap::new(),
        leaving: None,
    }
}

/// A fabric with a copy under way, for so many calls, to the peer whose number is odd or even.
#[derive(Debug)]
struct Copying {
    parity: u64,
    calls: Mutex<u32>,
}

impl Fabric for Copying {
    fn post(&self, post: Post) -> Result<(), Refused> {
        Err(Refused { post, cause: PostError::NotOpen })
    }

    fn poll(&self, _: &mut Vec<Completion>, _: Duration) -> usize {
        0
    }

    fn wake(&self) {}

    fn close_peer(&self, peer: PeerId, _: Duration) -> Result<(), CloseError> {
        let mut calls = self.calls.lock().unwrap();
        if peer.0 % 2 != self.parity || *calls == 0 {
            return Ok(());
        }
        *calls -= 1;
        Err(CloseError::Copying { peer, copying: 1 })
    }

    fn counters(&self, _: PeerId) -> Option<Arc<PeerCounters>> {
        None
    }

    fn posts(&self) -> usize {
        0
    }
}

impl HostFabric for Copying {
    fn open_peer(&self, _: PeerId, _: Reach) -> Result<(), OpenError> {
        Ok(())
    }
}

#[test]
fn an_endpoint_is_closed_when_neither_sides_copies_are_under_way() {
    let peer = |engine| Peer { engine: EngineId(engine), incarnation: 1 };
    let (low, high) = (engine(Order::LayerPlaneBlock), engine(Order::LayerPlaneBlock));
    for parity in [0, 1] {
        let fabric = Copying { parity, calls: Mutex::new(2) };
        let mut endpoints = Endpoints::default();
        endpoints.open(&fabric, (peer(1), &low), (peer(2), &high)).unwrap();
        endpoints.close_all_of(peer(2));
        let closed: Vec<_> = (0..4).map(|_| endpoints.go_on_closing(&fabric).len()).collect();
        assert_eq!(closed, [0, 0, 1, 0]);
        assert!(!endpoints.are_closing());
    }
}

#[test]
fn an_endpoint_that_is_opened_again_has_another_key_and_no_old_post_goes_by_it() {
    let fabric = LocalFabric::new(|_| Fault::None);
    let (low, high) = (engine(Order::LayerPlaneBlock), engine(Order::BlockLayerPlane));
    let peer = |engine| Peer { engine: EngineId(engine), incarnation: 1 };
    let (one, other) = (peer(1), peer(2));
    let mut endpoints = Endpoints::default();
    let first = endpoints.open(&fabric, (other, &high), (one, &low)).unwrap();
    let (key, posts) = (first.key, [first.posts_of(one), first.posts_of(other)]);
    assert_eq!(first.pair(one).source().layout().order, Order::LayerPlaneBlock);
    assert_eq!(first.pair(other).source().layout().order, Order::BlockLayerPlane);
    assert_ne!(posts[0], posts[1]);
    let again = endpoints.open(&fabric, (one, &low), (other, &high)).unwrap().key;
    assert_eq!(again, key, "one for both ways");
    assert!(endpoints.usable(one, other, key).is_some());

    assert!(endpoints.close(other, one));
    assert!(endpoints.usable(one, other, key).is_none(), "it is being closed");
    let while_closing = endpoints.open(&fabric, (one, &low), (other, &high));
    assert!(matches!(while_closing, Err(NoEndpoint::Closing)));
    assert_eq!(endpoints.go_on_closing(&fabric).len(), 1);
    assert!(!endpoints.close(one, other), "it is closed");
    assert!(posts.iter().all(|peer| fabric.counters(*peer).is_none()), "both of its peers are");

    let second = endpoints.open(&fabric, (one, &low), (other, &high)).unwrap().key;
    assert_ne!(second, key);
    assert!(endpoints.usable(other, one, key).is_none());
    assert!(endpoints.usable(other, one, second).is_some());
    endpoints.close_all_of(other);
    assert_eq!(endpoints.go_on_closing(&fabric).len(), 1);
    assert!(!endpoints.has(one));
}
