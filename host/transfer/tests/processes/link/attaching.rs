//! Engines that do all as they should.

use sluice_engine_sdk::wire::{
    Attempt, Epoch, Extent, Frame, NewHold, Refused, Subject, ToEngine, ToHost, TransferId, write_hello,
};
use sluice_engine_sdk::{AttachError, EngineLink, Event, LinkEnd, SendError};
use sluice_transfer::link::wire::{BlockRef, Rank, RefusalCode};
use sluice_transfer::link::{LinkEvent, Settings};
use std::os::fd::AsFd;

use super::raw::{Raw, good_memfd, hello};
use super::{BLOCK_BYTES, Host, Peer, SLAB_BYTES, engine, engine_event, numbered, quick, slab};

#[test]
fn an_engine_in_another_process_gives_its_memory_and_says_what_is_in_it() {
    let host = Host::new(Settings::default());
    let mut peer = Peer::new("engine", &host.socket, &["7"]);
    let attached = host.attached();
    assert_eq!((attached.pid, attached.model.as_str()), (peer.child.id(), "test"));
    assert_eq!(attached.geometry.rank_bytes(), SLAB_BYTES);
    let ToHost::Hold { hold } = host.said() else { panic!("no hold") };
    assert_eq!(hold.blocks, [BlockRef { index: 3, generation: 1 }]);
    assert_eq!(host.said(), ToHost::Ready { id: hold.id, rect: hold.extent.grid(2).unwrap().whole() });
    assert_eq!(host.said(), ToHost::Filled { id: hold.id });
    let mut block = vec![0; BLOCK_BYTES as usize];
    attached.slab.read(3 * BLOCK_BYTES, &mut block).unwrap();
    assert!(block.iter().all(|byte| *byte == 0xC3), "what is reported is there");

    let ToHost::Receive { receive } = host.said() else { panic!("nothing asked for") };
    assert_eq!(receive.blocks[0].index, 5);
    attached.slab.write(5 * BLOCK_BYTES, &[0xA5]).unwrap();
    let rect = receive.extent.cells(receive.wanted, 2).unwrap();
    attached.sender.send(ToEngine::Arrived { attempt: receive.attempt, rect }).unwrap();
    attached.sender.send(ToEngine::Completed { attempt: receive.attempt }).unwrap();
    assert_eq!(peer.line(), "attached");
    let line = peer.line();
    assert!(line.starts_with("arrived") && line.ends_with(" a5"), "{line}");
    assert!(peer.line().contains("Completed"));
}

#[test]
fn one_byte_at_a_time_is_as_good() {
    let host = Host::new(Settings::default());
    let mut raw = Raw::connect(&host.socket);
    let memfd = good_memfd();
    for (at, byte) in write_hello(&hello(1)).unwrap().into_iter().enumerate() {
        let descriptors = [memfd.as_fd()];
        raw.send(&[byte], if at == 0 { &descriptors } else { &[] });
    }
    let attached = host.attached();
    assert!(raw.answer().is_some());
    for byte in sluice_engine_sdk::wire::encode(&numbered(5)).unwrap() {
        raw.send(&[byte], &[]);
    }
    assert_eq!(host.said(), ToHost::Renew { id: TransferId(5) });
    raw.say::<ToHost>(&Frame::Ping(77));
    assert_eq!(raw.frame(), Some(Frame::Pong(77)));
    raw.say::<ToHost>(&Frame::Goodbye("enough".to_owned()));
    let event = host.event();
    assert!(
        matches!(&event, LinkEvent::Detached { session, why: LinkEnd::Left(why) }
            if *session == attached.session && why == "enough"),
        "{event:?}"
    );
}

#[test]
fn a_rank_is_attached_once_and_again_when_the_first_is_gone() {
    let host = Host::new(Settings::default());
    let next = || {
        let mut events = std::iter::repeat_with(|| host.event());
        events.find(|event| !matches!(event, LinkEvent::Refused { .. })).unwrap()
    };
    let (first, _) = EngineLink::attach(&host.socket, engine(1), slab(), quick()).unwrap();
    let attached = host.attached();
    let refused = EngineLink::attach(&host.socket, engine(1), slab(), quick()).unwrap_err();
    assert!(
        matches!(&refused, AttachError::Refused { refusal, .. } if refusal.code == RefusalCode::Duplicate),
        "{refused}"
    );
    let other = sluice_engine_sdk::Engine { rank: Rank(1), ..engine(1) };
    let (_other, _) = EngineLink::attach(&host.socket, other, slab(), quick()).unwrap();
    // Behind a refusal for each try.
    let LinkEvent::Attached(second) = next() else { panic!("no attach") };
    assert_eq!(second.rank, Rank(1));

    drop(first);
    assert!(matches!(next(), LinkEvent::Detached { why: LinkEnd::Left(_), .. }));
    // Its memory is still mapped here, so that something may still be written into it.
    let refused = EngineLink::attach(&host.socket, engine(1), slab(), quick()).unwrap_err();
    assert!(refused.to_string().contains("not over yet"), "{refused}");
    let before = attached.session;
    drop(attached);
    let (_again, session) = EngineLink::attach(&host.socket, engine(1), slab(), quick()).unwrap();
    assert!(session.number() > before);
    assert!(matches!(next(), LinkEvent::Attached(again) if again.session == session.number()));
}

#[test]
fn a_description_that_cannot_be_is_refused_alone() {
    let host = Host::new(Settings::default());
    let (link, session) = EngineLink::attach(&host.socket, engine(1), slab(), quick()).unwrap();
    let _attached = host.attached();
    let extent = Extent { first_token: 0, end_token: 4, position_tokens: 4 };
    let hold = |id, index| NewHold {
        id: TransferId(id),
        extent,
        blocks: vec![BlockRef { index, generation: 1 }],
        first_token: 0,
        proofs: Vec::new(),
        fill_ms: 1,
        ttl_ms: 1,
        renewable: false,
        margin_ms: 0,
    };
    session.hold(hold(1, 8)).unwrap();
    session.hold(hold(2, 7)).unwrap();
    let event = host.event();
    assert!(matches!(&event, LinkEvent::Invalid { text, .. } if text.contains("block 8")), "{event:?}");
    assert_eq!(host.said(), ToHost::Hold { hold: hold(2, 7) });
    let event = engine_event(&link);
    let expected = ToEngine::Refused { subject: Subject::Hold(TransferId(1)), why: Refused::Invalid };
    assert!(matches!(&event, Event::Host(said) if *said == expected), "{event:?}");
}

#[test]
fn a_host_that_goes_is_survived_and_found_again() {
    let host = Host::new(Settings::default());
    let (link, first) = EngineLink::attach(&host.socket, engine(1), slab(), quick()).unwrap();
    assert_eq!(host.attached().incarnation, 100);
    let Host { listener, socket, _folder } = host;
    drop(listener);
    let event = engine_event(&link);
    assert!(
        matches!(&event, Event::Detached { session, why: LinkEnd::Left(why) }
            if *session == first.number() && why.contains("going away")),
        "{event:?}"
    );
    assert!(matches!(engine_event(&link), Event::Waiting(_)));
    let attempt = Attempt { id: TransferId(1), epoch: Epoch(1) };
    assert_eq!(first.abort(attempt), Err(SendError::Over));

    let listener = sluice_transfer::link::LinkListener::bind(&socket, Settings::default()).unwrap();
    let host = Host { listener, socket, _folder };
    assert!(host.attached().incarnation > 100, "each attach is another life");
    let event = engine_event(&link);
    let Event::Attached(session) = event else { panic!("{event:?}") };
    session.abort(attempt).unwrap();
    assert!(matches!(host.said(), ToHost::Abort { .. }));
    assert_eq!(first.abort(attempt), Err(SendError::Over), "nothing of one host reaches the next");
}
