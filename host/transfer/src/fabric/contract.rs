//! What every fabric does, and what each fault of the local one is.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::memory::{HugePages, Slab};

const BYTES: u64 = 1 << 20;
/// Far beyond what any of it takes.
const PATIENCE: Duration = Duration::from_secs(30);
const PEER: PeerId = PeerId(7);

fn slab(fill: u8) -> Arc<Slab> {
    let slab = Slab::create(BYTES, HugePages::FromKernelOnly).unwrap();
    slab.write(0, &vec![fill; BYTES as usize]).unwrap();
    Arc::new(slab)
}

fn bytes_of(slab: &Slab) -> Vec<u8> {
    let mut bytes = vec![0; slab.bytes() as usize];
    slab.read(0, &mut bytes).unwrap();
    bytes
}

fn post(ticket: u64, verb: Verb, copies: &[(u64, u64, u64)]) -> Post {
    let copy = |(source_offset, sink_offset, len): &(u64, u64, u64)| ByteCopy {
        source_offset: *source_offset,
        sink_offset: *sink_offset,
        len: *len,
    };
    let (local, remote) = (RegionId(0), RegionId(0));
    let copies: Vec<_> = copies.iter().map(copy).collect();
    Post { peer: PEER, ticket: Ticket(ticket), verb, local, remote, runs_before: 10, copies }
}

/// A fabric with one peer: 1s on our side, 2s on the peer's.
struct Rig {
    fabric: Box<dyn Fabric>,
    local: Arc<Slab>,
    remote: Arc<Slab>,
}

impl Rig {
    fn local(fault: Fault) -> Self {
        let fabric = LocalFabric::new(move |_| fault);
        Self::with(fabric, |fabric, endpoint| fabric.open_peer(PEER, endpoint).unwrap())
    }

    fn shm(settings: ShmSettings) -> Self {
        let fabric = ShmFabric::start(settings).unwrap();
        Self::with(fabric, |fabric, endpoint| fabric.open_peer(PEER, endpoint).unwrap())
    }

    fn with<F: Fabric + 'static>(fabric: F, open: impl Fn(&F, Endpoint)) -> Self {
        let (local, remote) = (slab(1), slab(2));
        open(&fabric, Endpoint { local: vec![Arc::clone(&local)], remote: vec![Arc::clone(&remote)] });
        Self { fabric: Box::new(fabric), local, remote }
    }

    /// The end of `count` posts.
    fn ends(&self, count: usize) -> Vec<Completion> {
        let mut ends = Vec::new();
        while ends.len() < count {
            assert!(self.fabric.poll(&mut ends, PATIENCE) > 0, "{} of {count} ended", ends.len());
        }
        ends
    }

    fn figures(&self, verb: Verb) -> Figures {
        self.fabric.counters(PEER).unwrap().of(verb).figures()
    }
}

fn rigs() -> Vec<Rig> {
    let streamed = ShmSettings { streamed_from_bytes: 0, ..ShmSettings::default() };
    let cached = ShmSettings { threads: 1, streamed_from_bytes: u64::MAX, ..ShmSettings::default() };
    vec![Rig::local(Fault::None), Rig::shm(streamed), Rig::shm(cached)]
}

#[test]
fn reads_and_writes_move_what_they_say() {
    for rig in rigs() {
        let sent = [(0, 10, 5), (100, 40_000, 600_000)];
        rig.fabric.post(post(1, Verb::Write, &sent)).unwrap();
        let end = rig.ends(1).remove(0);
        assert_eq!((end.peer, end.ticket, end.verb, end.result), (PEER, Ticket(1), Verb::Write, Ok(())));
        assert_eq!(end.copies.len(), 2, "their memory comes back");
        let mut expected = vec![2; BYTES as usize];
        expected[10..15].fill(1);
        expected[40_000..640_000].fill(1);
        assert!(bytes_of(&rig.remote) == expected, "{:?}", rig.fabric);

        rig.fabric.post(post(2, Verb::Read, &[(10, 0, 6)])).unwrap();
        assert_eq!(rig.ends(1)[0].verb, Verb::Read);
        assert_eq!(&bytes_of(&rig.local)[..8], [1, 1, 1, 1, 1, 2, 1, 1]);

        let written =
            Figures { bytes: 600_005, operations: 1, runs_before: 10, runs: 2, ..Figures::default() };
        assert_eq!(rig.figures(Verb::Write), written);
        assert_eq!(rig.figures(Verb::Read).bytes, 6);
    }
}

#[test]
fn a_post_without_copies_ends_too() {
    for rig in rigs() {
        rig.fabric.post(post(1, Verb::Write, &[])).unwrap();
        rig.fabric.post(post(2, Verb::Write, &[(0, 0, 0)])).unwrap();
        assert!(rig.ends(2).iter().all(|end| end.result == Ok(())));
        assert_eq!(rig.fabric.posts(), 0);
    }
}

#[test]
fn lies_are_refused_before_a_byte_moves() {
    let beyond = |index, side, offset, len| PostError::OutOfRange { index, side, offset, len, bytes: BYTES };
    for rig in rigs() {
        let cases = [
            (post(1, Verb::Write, &[(0, 0, 9), (BYTES, 0, 1)]), beyond(1, "source", BYTES, 1)),
            (post(1, Verb::Write, &[(0, 0, 9), (0, BYTES - 1, 2)]), beyond(1, "sink", BYTES - 1, 2)),
            (post(1, Verb::Read, &[(u64::MAX, 0, 2)]), beyond(0, "source", u64::MAX, 2)),
            (
                Post { remote: RegionId(1), ..post(1, Verb::Read, &[]) },
                PostError::Region { side: "remote", region: 1 },
            ),
            (
                Post { local: RegionId(3), ..post(1, Verb::Read, &[]) },
                PostError::Region { side: "local", region: 3 },
            ),
            (Post { peer: PeerId(8), ..post(1, Verb::Read, &[]) }, PostError::NotOpen),
        ];
        for (post, cause) in cases {
            let refused = rig.fabric.post(post.clone()).unwrap_err();
            assert_eq!((refused.post, refused.cause), (post, cause), "the post comes back whole");
        }
        assert_eq!(rig.fabric.posts(), 0);
        assert!(bytes_of(&rig.remote).iter().all(|byte| *byte == 2));
    }
}

#[test]
fn too_many_copies_are_refused() {
    let rig = Rig::local(Fault::None);
    let copies = MAX_POST_COPIES + 1;
    let refused = rig.fabric.post(post(1, Verb::Write, &vec![(0, 0, 1); copies])).unwrap_err();
    assert_eq!(refused.cause, PostError::TooManyCopies { copies });
}

#[test]
fn what_is_not_polled_holds_new_posts_up() {
    let rig = Rig::shm(ShmSettings { max_posts: 3, ..ShmSettings::default() });
    for ticket in 0..3 {
        rig.fabric.post(post(ticket, Verb::Write, &[(0, 0, 64)])).unwrap();
    }
    let refused = rig.fabric.post(post(3, Verb::Write, &[(0, 0, 64)])).unwrap_err();
    assert_eq!(refused.cause, PostError::Full { posts: 3 });
    assert_eq!(rig.figures(Verb::Write).refused_full, 1);
    rig.ends(3);
    rig.fabric.post(refused.post).unwrap();
    rig.ends(1);
    assert_eq!(rig.figures(Verb::Write).queued, 0);
}

#[test]
fn nothing_lands_once_a_peer_is_closed() {
    for threads in [1, 3] {
        let rig = Rig::shm(ShmSettings { threads, ..ShmSettings::default() });
        for ticket in 0..200 {
            rig.fabric.post(post(ticket, Verb::Write, &[(0, 0, BYTES)])).unwrap();
        }
        rig.fabric.close_peer(PEER, PATIENCE).unwrap();
        let seen = {
            // Whatever landed is taken away: what lands from now on would be seen.
            rig.remote.write(0, &vec![9; BYTES as usize]).unwrap();
            rig.ends(200)
        };
        let mut tickets: Vec<_> = seen.iter().map(|end| end.ticket.0).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, (0..200).collect::<Vec<_>>(), "each post has one end");
        assert!(seen.iter().all(|end| matches!(end.result, Ok(()) | Err(Failure::PeerClosed))));
        let refused = rig.fabric.post(post(1, Verb::Write, &[(0, 0, 1)])).unwrap_err();
        assert_eq!(refused.cause, PostError::NotOpen);
        assert_eq!(rig.fabric.close_peer(PEER, PATIENCE), Err(CloseError::NotOpen(PEER)));
        // Its threads have ended when this returns.
        drop(rig.fabric);
        assert!(bytes_of(&rig.remote).iter().all(|byte| *byte == 9), "a write landed after the close");
    }
}

#[test]
fn a_closed_peer_can_be_opened_again_and_an_open_one_cannot() {
    let fabric = ShmFabric::start(ShmSettings::default()).unwrap();
    fabric.open_peer(PEER, Endpoint::default()).unwrap();
    assert_eq!(fabric.open_peer(PEER, Endpoint::default()), Err(OpenError::Open(PEER)));
    fabric.close_peer(PEER, Duration::ZERO).unwrap();
    fabric.open_peer(PEER, Endpoint::default()).unwrap();
    for peer in 100..100 + MAX_PEERS as u64 - 1 {
        fabric.open_peer(PeerId(peer), Endpoint::default()).unwrap();
    }
    assert_eq!(fabric.open_peer(PeerId(1), Endpoint::default()), Err(OpenError::TooMany));
}

#[test]
fn a_wake_ends_one_wait_whether_it_comes_before_or_during_it() {
    let rig = Rig::shm(ShmSettings::default());
    rig.fabric.wake();
    assert_eq!(rig.fabric.poll(&mut Vec::new(), Duration::MAX), 0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| rig.fabric.poll(&mut Vec::new(), PATIENCE * 100));
        rig.fabric.wake();
        assert_eq!(waits.join().unwrap(), 0);
    });
    rig.fabric.post(post(1, Verb::Write, &[(0, 0, 9)])).unwrap();
    assert_eq!(rig.ends(1).len(), 1, "it is over with that");
}

#[test]
fn copy_threads_have_names_and_a_number() {
    let fabric = ShmFabric::start(ShmSettings { threads: 3, ..ShmSettings::default() }).unwrap();
    let mut names: Vec<_> = fabric.thread_names().collect();
    names.sort_unstable();
    assert_eq!(names, ["kv-copy-0", "kv-copy-1", "kv-copy-2"]);
    for settings in [
        ShmSettings { threads: 0, ..ShmSettings::default() },
        ShmSettings { threads: 65, ..ShmSettings::default() },
        ShmSettings { max_posts: 0, ..ShmSettings::default() },
    ] {
        assert!(matches!(ShmFabric::start(settings), Err(StartError::Setting { .. })), "{settings:?}");
    }
}

/// Polls until a fault is told of, if it is; what landed by then, and what had landed in the end.
fn course(fault: Fault, polls: u64) -> (Vec<Result<(), Failure>>, usize, usize) {
    let rig = Rig::local(fault);
    rig.fabric.post(post(1, Verb::Write, &[(0, 0, 10), (0, 50, 10)])).unwrap();
    let landed = || bytes_of(&rig.remote).iter().filter(|byte| **byte == 1).count();
    let mut ends = Vec::new();
    rig.fabric.poll(&mut ends, Duration::ZERO);
    let first = landed();
    for _ in 1..polls {
        rig.fabric.poll(&mut ends, Duration::ZERO);
    }
    (ends.into_iter().map(|end| end.result).collect(), first, landed())
}

#[test]
fn faults_are_what_they_are_called() {
    let failed = |why| vec![Err(Failure::Fabric(why))];
    let late = "it lands late, as the test asked";
    let cases = [
        (Fault::None, 1, (vec![Ok(())], 20, 20)),
        (Fault::Delayed { polls: 2 }, 2, (vec![], 0, 0)),
        (Fault::Delayed { polls: 2 }, 3, (vec![Ok(())], 0, 20)),
        (Fault::Failed, 5, (failed("as the test asked"), 0, 0)),
        (Fault::FailedHalfway, 5, (failed("halfway, as the test asked"), 10, 10)),
        (Fault::LandsLate { polls: 3 }, 3, (failed(late), 0, 0)),
        (Fault::LandsLate { polls: 3 }, 4, (failed(late), 0, 20)),
        (Fault::CompletionLost, 9, (vec![], 20, 20)),
    ];
    for (fault, polls, expected) in cases {
        assert_eq!(course(fault, polls), expected, "{fault:?} after {polls} polls");
    }
}

#[test]
fn closing_a_peer_ends_even_what_would_land_late() {
    for (fault, ends) in
        [(Fault::LandsLate { polls: 5 }, 0), (Fault::CompletionLost, 1), (Fault::Delayed { polls: 5 }, 1)]
    {
        let rig = Rig::local(fault);
        rig.fabric.post(post(1, Verb::Write, &[(0, 0, 10)])).unwrap();
        rig.fabric.poll(&mut Vec::new(), Duration::ZERO);
        rig.fabric.close_peer(PEER, Duration::ZERO).unwrap();
        rig.remote.write(0, &[9; 10]).unwrap();
        let mut told = Vec::new();
        for _ in 0..10 {
            rig.fabric.poll(&mut told, Duration::ZERO);
        }
        assert_eq!(told.len(), ends, "{fault:?}");
        assert!(told.iter().all(|end| end.result == Err(Failure::PeerClosed)));
        assert_eq!(&bytes_of(&rig.remote)[..10], [9; 10], "{fault:?} landed after the close");
        assert_eq!(rig.fabric.posts(), 0);
    }
}
