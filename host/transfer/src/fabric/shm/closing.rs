//! Closing a peer while a thread is at its bytes, the thread played by the test.

use super::*;
use crate::fabric::{Failure, RegionId, Ticket, Verb};
use crate::layout::ByteCopy;
use crate::memory::{HugePages, Slab};

const PEER: PeerId = PeerId(1);
/// Longer than one slice.
const BYTES: u64 = 2 << 20;

fn post(ticket: u64) -> Post {
    let copies = vec![ByteCopy { source_offset: 0, sink_offset: 0, len: BYTES }];
    let (local, remote, verb) = (RegionId(0), RegionId(0), Verb::Read);
    Post { peer: PEER, ticket: Ticket(ticket), verb, local, remote, copies, runs_before: 1 }
}

/// Without threads: nothing happens but what the test does.
fn idle_fabric() -> ShmFabric {
    let fabric = ShmFabric { shared: Arc::default(), threads: Vec::new(), settings: ShmSettings::default() };
    let slab = || Arc::new(Slab::create(BYTES, HugePages::FromKernelOnly).unwrap());
    fabric.open_peer(PEER, Endpoint { local: vec![slab()], remote: vec![slab()] }).unwrap();
    fabric
}

#[test]
fn a_peer_is_not_closed_while_a_thread_copies() {
    let fabric = idle_fabric();
    fabric.post(post(1)).unwrap();
    fabric.post(post(2)).unwrap();
    let slice = fabric.shared.lock().jobs.hand_out().unwrap();
    for _ in 0..2 {
        let refused = fabric.close_peer(PEER, Duration::ZERO);
        assert_eq!(refused, Err(CloseError::Copying { peer: PEER, copying: 1 }));
    }
    assert_eq!(fabric.post(post(3)).unwrap_err().cause, PostError::NotOpen, "it takes no more");
    assert_eq!(fabric.open_peer(PEER, Endpoint::default()), Err(OpenError::Open(PEER)));
    assert!(!fabric.shared.lock().jobs.has_work(), "and no thread gets anything more of it");

    let mut state = fabric.shared.lock();
    fabric.shared.give_back(&mut state, slice, Ok(()));
    drop(state);
    assert_eq!(fabric.close_peer(PEER, Duration::ZERO), Ok(()));
    let mut ends = Vec::new();
    fabric.poll(&mut ends, Duration::ZERO);
    ends.sort_by_key(|end| end.ticket);
    let told: Vec<_> = ends.iter().map(|end| (end.ticket.0, end.result)).collect();
    assert_eq!(told, [(1, Err(Failure::PeerClosed)), (2, Err(Failure::PeerClosed))]);
}

#[test]
fn what_a_thread_finishes_before_the_close_has_ended_well() {
    let fabric = idle_fabric();
    fabric.post(post(1)).unwrap();
    let mut state = fabric.shared.lock();
    let mut slices: Vec<_> = std::iter::from_fn(|| state.jobs.hand_out()).collect();
    assert!(slices.len() > 1);
    let last = slices.pop().unwrap();
    for slice in slices {
        assert!(state.jobs.give_back(slice, Ok(())).is_none());
    }
    drop(state);
    assert!(fabric.close_peer(PEER, Duration::ZERO).is_err());
    let ended = fabric.shared.lock().jobs.give_back(last, Ok(())).unwrap();
    assert_eq!(ended.completion.result, Ok(()), "all its bytes are in place");
    assert_eq!(fabric.close_peer(PEER, Duration::ZERO), Ok(()));
}

#[test]
fn whoever_closes_is_woken_by_the_last_slice() {
    /// Far beyond the patience of the test: only a wake-up ends this wait in time.
    const WAIT: Duration = Duration::from_secs(86_400);
    let fabric = Arc::new(idle_fabric());
    fabric.post(post(1)).unwrap();
    let slice = fabric.shared.lock().jobs.hand_out().unwrap();
    let (told, closed) = std::sync::mpsc::channel();
    let closer = Arc::clone(&fabric);
    let thread = std::thread::spawn(move || told.send(closer.close_peer(PEER, WAIT)));
    while fabric.shared.lock().closing == 0 {
        std::thread::yield_now();
    }
    fabric.shared.give_back(&mut fabric.shared.lock(), slice, Ok(()));
    assert_eq!(closed.recv_timeout(Duration::from_secs(30)), Ok(Ok(())), "nobody woke it");
    thread.join().unwrap().unwrap();
}
