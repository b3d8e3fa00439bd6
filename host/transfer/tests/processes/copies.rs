//! Copies from and to the memory of a process that dies.

use std::sync::Arc;
use std::time::Duration;

use sluice_transfer::fabric::{
    Completion, Endpoint, Fabric, PeerId, Post, RegionId, ShmFabric, ShmSettings, Ticket, Verb,
};
use sluice_transfer::layout::ByteCopy;

use crate::slabs::{bytes_of, kill, pattern, slab, writer};

const BYTES: u64 = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

fn post(peer: u64, ticket: u64, verb: Verb) -> Post {
    let copies = vec![ByteCopy { source_offset: 0, sink_offset: 0, len: BYTES }];
    let (local, remote) = (RegionId(0), RegionId(0));
    Post { peer: PeerId(peer), ticket: Ticket(ticket), verb, local, remote, copies, runs_before: 1 }
}

fn end(fabric: &ShmFabric) -> Completion {
    let mut ends = Vec::new();
    while ends.is_empty() {
        assert!(fabric.poll(&mut ends, PATIENCE) > 0, "no end came");
    }
    assert_eq!(ends.len(), 1);
    ends.remove(0)
}

#[test]
fn an_engine_that_is_killed_while_its_memory_is_read_harms_nobody() {
    let fabric = ShmFabric::start(ShmSettings::default()).unwrap();
    let (ours, theirs) = (Arc::new(slab(BYTES, 1)), Arc::new(slab(BYTES, 2)));
    let endpoint = Endpoint { local: vec![Arc::clone(&ours)], remote: vec![Arc::clone(&theirs)] };
    for round in 0..10 {
        let peer = PeerId(round);
        fabric.open_peer(peer, endpoint.clone()).unwrap();
        let engine = writer(&theirs);
        fabric.post(post(round, 0, Verb::Read)).unwrap();
        kill(engine);
        assert_eq!(end(&fabric).result, Ok(()), "memory outlives its process");
        assert!(bytes_of(&ours).iter().all(|byte| *byte == 0xAB), "what the engine wrote, and nothing else");
        fabric.close_peer(peer, PATIENCE).unwrap();

        // The next engine with that memory.
        fabric.open_peer(peer, endpoint.clone()).unwrap();
        theirs.write(0, &pattern(BYTES, round as u8)).unwrap();
        fabric.post(post(round, 1, Verb::Read)).unwrap();
        assert_eq!(end(&fabric).result, Ok(()));
        assert!(bytes_of(&ours) == pattern(BYTES, round as u8));
        fabric.close_peer(peer, PATIENCE).unwrap();
    }
}
