//! The other process of the tests about links: an engine, or a host, that does one thing and then says what it is told.
//!
//! `engine SOCKET ID` attaches with 8 blocks, fills block 3, holds and reports it, and asks for block 5. Then it says
//! each event, and for what arrived the first byte of it.
//! `host SOCKET` listens, says each event, and lets go of what is detached.
//! Both end when their standard input does.
#![allow(clippy::print_stdout, reason = "it answers on its standard output")]

use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluice_engine_sdk::wire::{
    Attempt, BlockRef, Direction, Element, EngineId, Epoch, Extent, HeadOrder, KvLayout, NewHold, NewReceive,
    Order, Planes, Rank, Role, ToEngine, Tokens, TransferId, Verb,
};
use sluice_engine_sdk::{Engine, EngineLink, Event, Settings, Slab, incarnation_now};
use sluice_transfer::link::{LinkEvent, LinkListener};

/// As the tests have it.
const LAYOUT: KvLayout = KvLayout {
    blocks: 8,
    block_tokens: 4,
    layers: 2,
    planes: Planes::KeyValue,
    kv_heads: 1,
    head_dim: 64,
    element: Element::Bf16,
    tp_size: 2,
    order: Order::BlockLayerPlane,
    head_order: HeadOrder::HeadsOutermost,
};
const BLOCK_BYTES: u64 = 2 * 2 * 4 * 64 * 2;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // Whoever started this holds the other end: no process outlives its test.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["engine", socket, id] => engine(socket, id.parse()?),
        ["host", socket] => host(Path::new(socket)),
        _ => Err("usage: link-peer engine SOCKET ID | host SOCKET".into()),
    }
}

fn engine(socket: &str, id: u128) -> Result<(), Box<dyn Error>> {
    let slab = Arc::new(Slab::create(LAYOUT.rank_bytes().ok_or("too large")?)?);
    let engine = Engine {
        name: format!("engine-{id}"),
        incarnation: incarnation_now(),
        rank: Rank(0),
        role: Role::Unified,
        model: "test".to_owned(),
        layout: LAYOUT,
    };
    let (link, session) = EngineLink::attach(socket, engine, Arc::clone(&slab), Settings::default())?;
    println!("attached");
    slab.write(3 * BLOCK_BYTES, &[0xC3; BLOCK_BYTES as usize])?;
    let extent = Extent { first_token: 0, end_token: 4, position_tokens: 4 };
    let (id, wanted) = (TransferId(1), Tokens { first: 0, end: 4 });
    let block = |index| vec![BlockRef { index, generation: 1 }];
    let blocks = block(3);
    session.hold(NewHold {
        id,
        extent,
        blocks,
        first_token: 0,
        proofs: Vec::new(),
        fill_ms: 1,
        ttl_ms: 1_000,
        renewable: true,
        margin_ms: 0,
    })?;
    session.ready(id, extent.grid(2).ok_or("no tokens")?.whole())?;
    session.filled(id)?;
    session.receive(NewReceive {
        attempt: Attempt { id: TransferId(2), epoch: Epoch(1) },
        source: EngineId::of_name("engine-9"),
        verb: Verb::Read,
        direction: Direction::PrefillToDecode,
        extent,
        wanted,
        blocks: block(5),
        first_token: 0,
        proofs: Vec::new(),
        first_byte_ms: 1_000,
        whole_ms: 1_000,
    })?;
    loop {
        match link.poll_event(Duration::from_secs(3_600))? {
            Some(Event::Host(ToEngine::Arrived { rect, .. })) => {
                let mut first = [0];
                slab.read(5 * BLOCK_BYTES, &mut first)?;
                println!("arrived {rect:?} {:x}", first[0]);
            }
            Some(Event::Detached { .. }) => println!("detached"),
            Some(Event::Attached(_)) => println!("attached again"),
            Some(event) => println!("{event:?}"),
            None => {}
        }
    }
}

fn host(socket: &Path) -> Result<(), Box<dyn Error>> {
    let listener = LinkListener::bind(socket, sluice_transfer::link::Settings::default())?;
    println!("listens");
    let mut attached = Vec::new();
    loop {
        match listener.next_event(Duration::from_secs(3_600))? {
            Some(LinkEvent::Attached(engine)) => {
                println!("attached {}", engine.session);
                attached.push(engine);
            }
            Some(LinkEvent::Detached { session, .. }) => {
                attached.retain(|engine| engine.session != session);
                println!("detached {session}");
            }
            Some(LinkEvent::Refused { refusal, .. }) => println!("refused {:?}", refusal.code),
            Some(event) => println!("{event:?}"),
            None => {}
        }
    }
}
