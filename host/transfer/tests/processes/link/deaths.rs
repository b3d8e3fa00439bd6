//! Processes that are killed or stopped.

use sluice_engine_sdk::{EngineLink, Event, LinkEnd};
use sluice_transfer::link::{LinkEvent, Settings};

use rustix::process::{Pid, Signal, kill_process};
use sluice_engine_sdk::transport::Pace;

use super::{BLOCK_BYTES, Host, Peer, engine, engine_event, quick, slab};

fn signal(peer: &Peer, signal: Signal) {
    kill_process(Pid::from_raw(peer.child.id() as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_killed_engine_is_an_event_and_its_memory_stays() {
    let host = Host::new(Settings::default());
    let mut peer = Peer::new("engine", &host.socket, &["7"]);
    let attached = host.attached();
    for _ in 0..4 {
        host.said();
    }
    peer.kill();
    let event = host.event();
    assert!(
        matches!(event, LinkEvent::Detached { session, why: LinkEnd::Closed } if session == attached.session),
        "{event:?}"
    );
    let mut byte = [0];
    attached.slab.read(3 * BLOCK_BYTES, &mut byte).unwrap();
    assert_eq!(byte, [0xC3], "who copies from it at this moment is not hurt");
    assert!(attached.sender.send(sluice_engine_sdk::wire::ToEngine::Freed { blocks: Vec::new() }).is_err());

    drop(attached);
    let _next = Peer::new("engine", &host.socket, &["7"]);
    assert_eq!(host.attached().name, "engine-7");
}

#[test]
fn an_engine_killed_at_once_does_not_keep_its_next_process_out() {
    let host = Host::new(Settings::default());
    for _ in 0..20 {
        let mut peer = Peer::new("engine", &host.socket, &["7"]);
        drop(host.attached());
        peer.kill();
        // The next one may come before the first one's end was seen here.
        let _next = Peer::new("engine", &host.socket, &["7"]);
        loop {
            match host.event() {
                LinkEvent::Attached(_) => break,
                LinkEvent::Said { .. } | LinkEvent::Detached { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        drop(_next);
        while !matches!(host.event(), LinkEvent::Detached { .. }) {}
    }
}

#[test]
fn a_killed_host_is_survived_by_its_engines_and_known_to_be_gone() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kv.sock");
    let mut host = Peer::new("host", &socket, &[]);
    assert_eq!(host.line(), "listens");
    let slab = slab();
    let (link, first) =
        EngineLink::attach(&socket, engine(1), std::sync::Arc::clone(&slab), quick()).unwrap();
    assert!(host.line().starts_with("attached"));
    slab.write(0, &[7]).unwrap();
    host.kill();
    let event = engine_event(&link);
    assert!(
        matches!(event, Event::Detached { session, why: LinkEnd::Closed }
            if session == first.number()),
        "{event:?}"
    );
    // Its process ends behind its socket, so either may come first.
    let next = || match engine_event(&link) {
        Event::HostGone { session } if session == first.number() => "gone",
        Event::Waiting(_) => "waiting",
        other => panic!("{other:?}"),
    };
    let mut both = [next(), next()];
    both.sort_unstable();
    assert_eq!(both, ["gone", "waiting"]);
    let mut byte = [0];
    slab.read(0, &mut byte).unwrap();
    assert_eq!(byte, [7]);

    // The dead host left its socket behind.
    let mut next = Peer::new("host", &socket, &[]);
    assert_eq!(next.line(), "listens");
    assert!(matches!(engine_event(&link), Event::Attached(_)));
    assert!(next.line().starts_with("attached"));
    drop(link);
    assert!(next.line().starts_with("detached"));
}

#[test]
fn a_stopped_engine_is_dead_and_attaches_again_when_it_goes_on() {
    let pace = Pace { ping_ms: 50, silence_ms: 400 };
    let host = Host::new(Settings { pace, ..Settings::default() });
    let mut peer = Peer::new("engine", &host.socket, &["7"]);
    let first = host.attached().session;
    for _ in 0..4 {
        host.said();
    }
    assert_eq!(peer.line(), "attached");
    signal(&peer, Signal::STOP);
    let event = host.event();
    assert!(
        matches!(event, LinkEvent::Detached { session, why: LinkEnd::Silent { silence_ms: 400 } } if session == first),
        "{event:?}"
    );
    signal(&peer, Signal::CONT);
    assert!(host.attached().session > first);
    assert_eq!(peer.line(), "detached");
    assert_eq!(peer.line(), "attached again");
}
