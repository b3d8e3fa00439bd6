//! Engines that send or read too much, too little, or too slowly.

use std::time::Duration;

use sluice_engine_sdk::transport::{MAX_QUEUED_FRAMES, Pace};
use sluice_engine_sdk::wire::{
    BlockRef, Frame, Rect, RefusalCode, ToEngine, ToHost, TransferId, encode, write_hello,
};
use sluice_engine_sdk::{EngineLink, LinkEnd, SendError};
use sluice_transfer::link::{LinkEvent, MAX_HANDSHAKES, SendError as HostSendError, Settings};
use std::os::fd::AsFd;

use super::raw::{Raw, good_memfd, hello};
use super::{Host, engine, numbered, quick, slab, whole};

/// Quick to take silence for death.
fn impatient() -> Settings {
    let pace = Pace { ping_ms: 30, silence_ms: 300 };
    Settings { pace, handshake_ms: 300, ..Settings::default() }
}

#[test]
fn half_a_hello_and_then_silence_ends() {
    let host = Host::new(impatient());
    let bytes = write_hello(&hello(1)).unwrap();
    for end in [0, 5, bytes.len() - 1] {
        let mut raw = Raw::connect(&host.socket);
        if end > 0 {
            raw.send(&bytes[..end], &[good_memfd().as_fd()]);
        }
        assert_eq!(raw.refusal().map(|(code, _)| code), Some(RefusalCode::TooSlow));
        assert!(matches!(host.event(), LinkEvent::Refused { .. }));
    }
}

#[test]
fn half_a_frame_and_then_silence_ends_however_slowly_it_grows() {
    let host = Host::new(impatient());
    let mut raw = Raw::attach(&host.socket, 1);
    let _attached = host.attached();
    let endless =
        encode(&Frame::Message(ToEngine::Freed { blocks: vec![BlockRef { index: 1, generation: 1 }; 100] }))
            .unwrap();
    // A byte for each ping: never quite silent, no frame for 800 pings.
    let mut bytes = endless.into_iter();
    let why = loop {
        match raw.frame() {
            Some(Frame::Ping(_)) => raw.send(&[bytes.next().unwrap()], &[]),
            Some(Frame::Goodbye(why)) => break why,
            other => panic!("{other:?}"),
        }
    };
    assert!(why.contains("nothing was heard for 300 ms"), "{why}");
    assert!(matches!(host.event(), LinkEvent::Detached { why: LinkEnd::Silent { .. }, .. }));
}

#[test]
fn an_idle_engine_that_answers_stays() {
    let host = Host::new(impatient());
    let mut raw = Raw::attach(&host.socket, 1);
    let _attached = host.attached();
    // Longer than silence would be allowed to last.
    for _ in 0..30 {
        let Some(Frame::Ping(number)) = raw.frame() else { panic!("no ping") };
        raw.say::<ToHost>(&Frame::Pong(number));
    }
    raw.say(&numbered(1));
    assert_eq!(host.said(), ToHost::Renew { id: TransferId(1) });
}

#[test]
fn a_flood_fills_bounded_queues_and_loses_nothing() {
    const EVENTS: usize = 16;
    let host = Host::new(Settings { events: EVENTS, ..Settings::default() });
    let settings = sluice_engine_sdk::Settings { send_ms: 20, ..quick() };
    let (link, session) = EngineLink::attach(&host.socket, engine(1), slab(), settings).unwrap();
    let mut sent = 0;
    let busy = loop {
        match session.renew(TransferId(sent)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 10_000_000, "a queue without a bound");
    };
    assert!(matches!(busy, SendError::Busy { frames: MAX_QUEUED_FRAMES, .. }), "{busy}");
    assert!(host.listener.queued_events() <= EVENTS);
    let _attached = host.attached();
    for number in 0..sent {
        assert_eq!(host.said(), ToHost::Renew { id: TransferId(number) });
        assert!(host.listener.queued_events() <= EVENTS);
    }
    session.renew(TransferId(sent)).unwrap();
    assert_eq!(host.said(), ToHost::Renew { id: TransferId(sent) });
    drop(link);
}

#[test]
fn an_engine_that_does_not_read_is_cut_off() {
    let host = Host::new(Settings::default());
    let _raw = Raw::attach(&host.socket, 1);
    let attached = host.attached();
    let freed = |number| ToEngine::LeaseLeft { id: TransferId(number), left_ms: 1 };
    let mut sent = 0;
    let refused = loop {
        match attached.sender.send(freed(sent)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(attached.sender.queued_frames() <= MAX_QUEUED_FRAMES);
        assert!(sent < 10_000_000, "a queue without a bound");
    };
    assert_eq!(refused, HostSendError::Gone);
    let event = host.event();
    assert!(matches!(event, LinkEvent::Detached { why: LinkEnd::NotReading { .. }, .. }), "{event:?}");
}

#[test]
fn who_leaves_does_not_wait_for_who_does_not_read() {
    // With such patience a side that waited would never end.
    let pace = Pace { ping_ms: 3_600_000, silence_ms: 3_600_000 };
    let host = Host::new(Settings { pace, events: 1, ..Settings::default() });
    let mut raw = Raw::attach(&host.socket, 1);
    let attached = host.attached();
    // More than the socket takes: its writer is stuck.
    while attached.sender.queued_frames() < 100 {
        let blocks = vec![BlockRef { index: 1, generation: 1 }; 1_000];
        attached.sender.send(ToEngine::Freed { blocks }).unwrap();
    }
    let (link, session) = EngineLink::attach(&host.socket, engine(2), slab(), quick()).unwrap();
    while session.renew(TransferId(1)).is_ok() {}
    // The engine's writer is stuck too, since nobody takes the events.
    drop(link);
    drop(host);
    while raw.frame().is_some() {}
    assert!(attached.sender.send(ToEngine::Freed { blocks: Vec::new() }).is_err());
}

#[test]
fn handshakes_and_engines_are_bounded() {
    let host = Host::new(Settings { max_engines: 2, handshake_ms: 60_000, ..Settings::default() });
    let links: Vec<_> =
        (1..=2).map(|id| EngineLink::attach(&host.socket, engine(id), slab(), quick()).unwrap()).collect();
    let attached = [host.attached(), host.attached()];
    let mut third = Raw::connect(&host.socket);
    third.send(&write_hello(&hello(3)).unwrap(), &[good_memfd().as_fd()]);
    assert_eq!(third.refusal().map(|(code, _)| code), Some(RefusalCode::Full));
    assert!(matches!(host.event(), LinkEvent::Refused { .. }));

    let mut waiting: Vec<Raw> = (0..MAX_HANDSHAKES).map(|_| Raw::connect(&host.socket)).collect();
    let mut one_more = Raw::connect(&host.socket);
    let (code, text) = one_more.refusal().unwrap();
    assert!(code == RefusalCode::Full && text.contains("attaching"), "{text}");
    assert!(matches!(host.event(), LinkEvent::Refused { .. }));
    // Stopping waits for none of them.
    drop(host);
    for raw in &mut waiting {
        assert_eq!(raw.answer(), None);
    }
    drop((links, attached));
}

#[test]
fn what_is_no_frame_or_cannot_be_ends_the_session_with_a_reason() {
    let impossible = Rect { end_layer: 3, ..whole().grid(2).unwrap().whole() };
    let ready = encode(&Frame::Message(ToHost::Ready { id: TransferId(1), rect: impossible })).unwrap();
    let cases: [(&[u8], &str); 5] = [
        (&[0, 0, 0, 0], "a frame of 0 bytes"),
        (&u32::MAX.to_le_bytes(), "must be 1 to"),
        (&[1, 0, 0, 0, 99], "99 is unknown"),
        (&[1, 0, 0, 0, 16], "ends early"),
        (&ready, "of 2 layers"),
    ];
    for (bytes, part) in cases {
        let host = Host::new(Settings::default());
        let mut raw = Raw::attach(&host.socket, 1);
        let _attached = host.attached();
        raw.say(&numbered(4));
        raw.send(bytes, &[]);
        assert_eq!(host.said(), ToHost::Renew { id: TransferId(4) }, "what came before it counts");
        let Some(Frame::Goodbye(why)) = raw.frame() else { panic!("no goodbye for {part}") };
        assert!(why.contains(part), "{why}");
        let event = host.event();
        assert!(
            matches!(&event, LinkEvent::Detached { why: LinkEnd::Broken(_) | LinkEnd::Wrong(_), .. }),
            "{event:?}"
        );
        assert!(host.listener.next_event(Duration::ZERO).unwrap().is_none());
    }
}
