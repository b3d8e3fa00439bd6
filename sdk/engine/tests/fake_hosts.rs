//! An engine's end against hosts that are none, or that go.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluice_engine_sdk::wire::{
    Answer, Attempt, Element, Epoch, Frame, HeadOrder, KvLayout, Order, Planes, Preamble, Rank, Refusal,
    RefusalCode, Role, ToEngine, TransferId, Welcome, encode, read_hello, write_answer,
};
use sluice_engine_sdk::{
    AttachError, Engine, EngineLink, Event, LinkClosed, LinkEnd, SendError, Settings, Slab,
};

/// Far beyond what anything here takes.
const FAR: Duration = Duration::from_secs(60);

const LAYOUT: KvLayout = KvLayout {
    blocks: 2,
    block_tokens: 4,
    layers: 2,
    planes: Planes::Latent,
    kv_heads: 1,
    head_dim: 64,
    element: Element::Fp8E4m3,
    tp_size: 1,
    order: Order::LayerPlaneBlock,
    head_order: HeadOrder::TokensOutermost,
};

fn engine() -> Engine {
    let (name, rank, model) = ("one".to_owned(), Rank(0), "test".to_owned());
    Engine { name, incarnation: 1, rank, role: Role::Decode, model, layout: LAYOUT }
}

fn slab() -> Arc<Slab> {
    Arc::new(Slab::create(LAYOUT.rank_bytes().unwrap()).unwrap())
}

/// Tries once.
fn attach(path: &Path, try_ms: u64) -> Result<(EngineLink, sluice_engine_sdk::Session), AttachError> {
    EngineLink::attach(path, engine(), slab(), Settings { attach_ms: 0, try_ms, ..Settings::default() })
}

fn welcome(version: u16) -> Vec<u8> {
    let answer =
        Answer::Welcome(Welcome { version, session: 4, ping_ms: 1_000, silence_ms: 60_000, max_open: 9 });
    write_answer(&answer).unwrap()
}

fn refusal(code: RefusalCode) -> Vec<u8> {
    write_answer(&Answer::Refusal(Refusal { code, text: "the host's own words".to_owned() })).unwrap()
}

/// Takes one connection, reads its hello, and answers.
fn answer(listener: &UnixListener, bytes: &[u8]) -> UnixStream {
    let (mut socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(FAR)).unwrap();
    let mut came = Vec::new();
    while let Preamble::Needs(missing) = read_hello(&came).unwrap() {
        let begin = came.len();
        came.resize(begin + missing, 0);
        socket.read_exact(&mut came[begin..]).unwrap();
    }
    socket.write_all(bytes).unwrap();
    socket
}

fn listener() -> (tempfile::TempDir, std::path::PathBuf, UnixListener) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kv.sock");
    let listener = UnixListener::bind(&path).unwrap();
    (folder, path, listener)
}

#[test]
fn what_is_no_host_is_told_apart() {
    type Expected = fn(&AttachError) -> bool;
    let cases: [(Vec<u8>, Expected); 6] = [
        (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), |error| matches!(error, AttachError::NotAHost { .. })),
        (Vec::new(), |error| matches!(error, AttachError::NoAnswer { .. }) && error.is_passing()),
        (welcome(1)[..9].to_vec(), |error| matches!(error, AttachError::NoAnswer { .. })),
        (welcome(9), |error| matches!(error, AttachError::Version { version: 9, .. })),
        (refusal(RefusalCode::User), |error| error.to_string().contains("own words") && !error.is_passing()),
        (refusal(RefusalCode::Duplicate), |error| {
            error.to_string().contains("own words") && error.is_passing()
        }),
    ];
    let (_folder, path, listener) = listener();
    for (bytes, expected) in cases {
        let error = std::thread::scope(|scope| {
            scope.spawn(|| drop(answer(&listener, &bytes)));
            attach(&path, 60_000).unwrap_err()
        });
        assert!(expected(&error), "{error}");
    }
    // It is there, and says nothing.
    let error = attach(&path, 20).unwrap_err();
    assert!(matches!(error, AttachError::NoAnswer { .. }), "{error}");
    drop(listener);
    let error = attach(&path, 60_000).unwrap_err();
    assert!(matches!(error, AttachError::NoHost { .. }) && error.to_string().contains("kv.sock"), "{error}");
}

#[test]
fn an_engine_that_cannot_attach_is_told_before_it_asks() {
    let small = Arc::new(Slab::create(1_000).unwrap());
    let path = Path::new("/nowhere/kv.sock");
    let error = EngineLink::attach(path, engine(), small, Settings::default()).unwrap_err();
    assert!(matches!(error, AttachError::SlabTooSmall { slab_bytes: 1_000, needed_bytes: 1_024 }), "{error}");
    let wordy = Engine { model: "x".repeat(513), ..engine() };
    let error = EngineLink::attach(path, wordy, slab(), Settings::default()).unwrap_err();
    assert!(matches!(error, AttachError::Description(_)), "{error}");
}

#[test]
fn a_host_that_will_not_have_it_again_is_the_last_event() {
    let (_folder, path, listener) = listener();
    std::thread::scope(|scope| {
        let host = scope.spawn(|| {
            let mut socket = answer(&listener, &welcome(1));
            let attempt = Attempt { id: TransferId(3), epoch: Epoch(1) };
            let said = Frame::Message(ToEngine::Completed { attempt });
            socket.write_all(&encode(&said).unwrap()).unwrap();
            socket.write_all(&encode(&Frame::<ToEngine>::Goodbye("go".to_owned())).unwrap()).unwrap();
            drop(answer(&listener, &refusal(RefusalCode::Version)));
        });
        let (link, session) = attach(&path, 60_000).unwrap();
        assert_eq!((session.number(), session.welcome().max_open), (4, 9));
        let next = || link.poll_event(FAR).map(|event| event.expect("an event within a minute"));
        assert!(matches!(next(), Ok(Event::Host(ToEngine::Completed { .. }))));
        let detached = next();
        assert!(
            matches!(&detached, Ok(Event::Detached { session: 4, why: LinkEnd::Left(why) })
                if why == "go"),
            "{detached:?}"
        );
        assert!(session.is_over());
        assert_eq!(session.release(TransferId(3)), Err(SendError::Over));
        let gave_up = next();
        assert!(matches!(&gave_up, Ok(Event::GaveUp(AttachError::Refused { .. }))), "{gave_up:?}");
        assert!(matches!(next(), Err(LinkClosed)));
        host.join().unwrap();
    });
}

#[test]
fn an_engine_leaves_with_a_goodbye_and_attaches_no_more() {
    let (_folder, path, listener) = listener();
    std::thread::scope(|scope| {
        let host = scope.spawn(|| {
            let mut socket = answer(&listener, &welcome(1));
            let mut said = Vec::new();
            socket.read_to_end(&mut said).unwrap();
            said
        });
        let (link, session) = attach(&path, 60_000).unwrap();
        session.filled(TransferId(8)).unwrap();
        drop(link);
        assert!(session.is_over());
        let mut frames = sluice_engine_sdk::wire::FrameBuffer::default();
        frames.push(&host.join().unwrap());
        let mut next = || frames.next_frame::<sluice_engine_sdk::wire::ToHost>().unwrap();
        assert!(matches!(next(), Some(Frame::Message(_))), "what was said before comes before");
        assert!(matches!(next(), Some(Frame::Goodbye(_))));
        assert_eq!(next(), None);
    });
}
