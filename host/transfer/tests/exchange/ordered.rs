//! What is said takes effect in the order in which it was said; what must wait for an endpoint can be taken back, and its
//! times run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sluice_engine_sdk::wire::ToEngine;
use sluice_transfer::exchange::{CommandError, Exchange, HostFabric, Said};
use sluice_transfer::fabric::{
    CloseError, Completion, Endpoint, Fabric, Fault, LocalFabric, OpenError, PeerCounters, PeerId, Post,
    Refused,
};
use sluice_transfer::protocol::limits::Limits;
use sluice_transfer::protocol::{Direction, HoldEnd, Reason, TransferId, Verb};

use crate::world::{Driver, World};

/// Takes so many calls to close a peer.
struct SlowToClose {
    fabric: LocalFabric,
    calls: Arc<AtomicU32>,
}

impl std::fmt::Debug for SlowToClose {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.fabric.fmt(out)
    }
}

impl Fabric for SlowToClose {
    fn post(&self, post: Post) -> Result<(), Refused> {
        self.fabric.post(post)
    }

    fn poll(&self, into: &mut Vec<Completion>, wait: Duration) -> usize {
        self.fabric.poll(into, wait)
    }

    fn wake(&self) {
        self.fabric.wake();
    }

    fn close_peer(&self, peer: PeerId, wait: Duration) -> Result<(), CloseError> {
        let less = |calls: u32| calls.checked_sub(1);
        if self.calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            return Err(CloseError::Copying { peer, copying: 1 });
        }
        self.fabric.close_peer(peer, wait)
    }

    fn counters(&self, peer: PeerId) -> Option<Arc<PeerCounters>> {
        self.fabric.counters(peer)
    }

    fn posts(&self) -> usize {
        self.fabric.posts()
    }
}

impl HostFabric for SlowToClose {
    fn open_peer(&self, peer: PeerId, endpoint: Endpoint) -> Result<(), OpenError> {
        self.fabric.open_peer(peer, endpoint)
    }
}

/// A world whose endpoint between the two is being closed after a transfer that failed.
fn closing() -> (World, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(u32::MAX));
    let mut is_first = true;
    let fails_first = move |_: &Post| if std::mem::take(&mut is_first) { Fault::Failed } else { Fault::None };
    let fabric = SlowToClose { fabric: LocalFabric::new(fails_first), calls: Arc::clone(&calls) };
    let (exchange, handle) = Exchange::new(Arc::new(fabric), Limits::default());
    let mut world = World::with(Driver::Hand(Box::new(exchange)), handle);
    let job = world.job(Verb::Write, Direction::PrefillToDecode, 64);
    world.hold(&job).unwrap();
    world.receive(&job).unwrap();
    world.handle.filled(world.prefill.peer, job.attempt.id).unwrap();
    // What failed may land until the endpoint is closed, and so nobody is told before.
    (0..10).for_each(|_| world.step());
    let next = world.job(Verb::Write, Direction::PrefillToDecode, 16);
    assert!(matches!(world.receive(&next), Err(CommandError::Closing)));
    world.decode.free(&next.sink);
    world.prefill.free(&next.source);
    (world, calls)
}

#[test]
fn a_heartbeat_behind_the_end_of_a_prefill_counts() {
    let mut world = World::stepped(|_| Fault::None);
    let job = world.job(Verb::Read, Direction::PrefillToDecode, 64);
    world.hold(&job).unwrap();
    let (peer, id) = (world.prefill.peer, job.attempt.id);
    world.handle.filled(peer, id).unwrap();
    let renewed = world.handle.renew(peer, id, Some(100_000)).unwrap();
    let left_ms = world.answer(renewed).unwrap().unwrap();
    assert!(left_ms > 90_000, "{left_ms}: its own time is 30 s");
    world.now_ms += 60_000;
    world.step();
    world.handle.release(peer, id).unwrap();
    let ended = ToEngine::HoldEnded { id, end: HoldEnd::Released };
    world.wait(job.direction, false, "the hold's end", |source| source.was_told(&ended));
}

#[test]
fn what_waits_for_an_endpoint_begins_when_that_is_closed() {
    let (mut world, calls) = closing();
    let job = world.job(Verb::Write, Direction::PrefillToDecode, 64);
    world.hold(&job).unwrap();
    (0..crate::kv::LAYERS).for_each(|layer| job.compute(&world.prefill, layer));
    world.handle.filled(world.prefill.peer, job.attempt.id).unwrap();
    let receive = Said::Receive(job.receive(world.prefill.peer));
    world.handle.said(world.decode.peer, receive).unwrap();
    (0..50).for_each(|_| world.step());
    assert_eq!(world.decode.outcome(job.attempt), None, "{:?}", world.decode.told);
    calls.store(0, Ordering::Relaxed);
    world.wait(job.direction, true, "its end", |sink| sink.outcome(job.attempt).is_some());
    assert_eq!((world.decode.outcome(job.attempt), job.all_wrong(&world.decode)), (Some(true), 0));
}

#[test]
fn what_waits_for_an_endpoint_can_be_taken_back_and_its_times_run() {
    for (cancels, skips_ms, reason) in
        [(true, 0, Reason::Cancelled), (false, 40_000, Reason::NoFirstByte), (false, 70_000, Reason::TooSlow)]
    {
        let (mut world, calls) = closing();
        let used = world.decode.used();
        let job = world.job(Verb::Write, Direction::PrefillToDecode, 64);
        let receive = Said::Receive(job.receive(world.prefill.peer));
        world.handle.said(world.decode.peer, receive).unwrap();
        world.step();
        if cancels {
            world.handle.cancel(world.decode.peer, job.attempt).unwrap();
        }
        world.now_ms += skips_ms;
        world.step();
        let failed = ToEngine::Failed { attempt: job.attempt, reason };
        assert!(world.decode.was_told(&failed), "{reason:?}: {:?}", world.decode.told);
        assert_eq!(world.decode.used(), used, "it had not begun: its blocks are free at once");
        calls.store(0, Ordering::Relaxed);
        world.handle.release(world.prefill.peer, TransferId(1)).unwrap();
        let is_back = |event: &ToEngine| matches!(event, ToEngine::Freed { .. });
        world.wait(job.direction, false, "the first hold's end", |source| source.told.iter().any(is_back));
        (0..50).for_each(|_| world.step());
        world.prefill.free(&job.source);
        world.transfer(Verb::Read, Direction::PrefillToDecode, 64, true);
        assert_eq!(world.decode.outcome(job.attempt), Some(false));
    }
}

#[test]
fn a_first_byte_that_is_wanted_sooner_is_wanted_so_of_what_waits_as_well() {
    let (mut world, _calls) = closing();
    let job = world.job(Verb::Write, Direction::PrefillToDecode, 64);
    world.handle.said(world.decode.peer, Said::Receive(job.receive(world.prefill.peer))).unwrap();
    world.handle.expect(world.decode.peer, job.attempt, 1_000).unwrap();
    world.step();
    world.now_ms += 1_500;
    world.step();
    let failed = ToEngine::Failed { attempt: job.attempt, reason: Reason::NoFirstByte };
    assert!(world.decode.was_told(&failed), "{:?}", world.decode.told);
}
