//! Engines that are killed and hosts that stand still, in the middle of transfers.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use sluice_engine_sdk::Slab;
use sluice_engine_sdk::wire::{BlockRef, Element, HeadOrder, KvLayout, Order, Planes, TransferId, Verb};

use super::engine::{Engine, Job, indexes};
use super::world::World;

/// Another process, which ends with the test.
struct Peer {
    child: Child,
    lines: BufReader<ChildStdout>,
    orders: ChildStdin,
}

impl Peer {
    fn new(words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_node-peer"));
        let mut child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (lines, orders) = (BufReader::new(child.stdout.take().unwrap()), child.stdin.take().unwrap());
        Self { child, lines, orders }
    }

    fn engine(socket: &Path, name: &str) -> Self {
        let kind = if name.starts_with("prefill") { "prefill" } else { "decode" };
        let mut peer = Self::new(&["engine", socket.to_str().unwrap(), name, kind]);
        assert_eq!(peer.line(), "attached");
        peer
    }

    fn order(&mut self, line: &str) {
        writeln!(self.orders, "{line}").unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A point in time that nobody chose: no test hangs on which it is.
fn spin(number: u64) {
    let turns = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 42;
    for turn in 0..turns {
        std::hint::black_box(turn);
    }
}

/// Points at which an engine is killed.
const KILLS: u64 = 100;
const TOKENS: u32 = 512;

#[test]
fn an_engine_that_is_killed_spoils_nothing_and_the_next_transfer_works() {
    let world = World::new();
    let names = ["prefill-0", "decode-0"];
    let mut peers = names.map(|name| Peer::engine(&world.socket, name));
    names.iter().for_each(|name| world.until_attached(name));
    let (mut came, mut failed) = (0, 0);
    for point in 0..KILLS {
        let (dies, verb) = ((point % 2) as usize, if point / 2 % 2 == 0 { "push" } else { "pull" });
        let [prefill, decode] = &mut peers;
        decode.order(&format!("receive {point} {verb} {TOKENS} prefill-0"));
        assert_eq!(decode.line(), "receives");
        prefill.order(&format!("hold {point} {TOKENS}"));
        assert_eq!(prefill.line(), "holds");
        spin(point);
        peers[dies].child.kill().unwrap();
        peers[dies].child.wait().unwrap();
        let [prefill, decode] = &mut peers;
        if dies == 0 {
            // Whole, or not at all.
            match decode.line().as_str() {
                "came 0" => came += 1,
                "failed" => failed += 1,
                other => panic!("point {point}: {other}"),
            }
        } else {
            assert_eq!(prefill.line(), "filled");
            world.node.handle().release(TransferId(point.into())).unwrap();
        }
        peers[dies] = Peer::engine(&world.socket, names[dies]);
        world.until_attached(names[dies]);
        let [prefill, decode] = &mut peers;
        let (number, tokens) = (1_000 + point, 96);
        decode.order(&format!("receive {number} {verb} {tokens} prefill-0"));
        assert_eq!(decode.line(), "receives");
        prefill.order(&format!("hold {number} {tokens}"));
        assert_eq!((prefill.line(), prefill.line()), ("holds".to_owned(), "filled".to_owned()));
        assert_eq!(decode.line(), "came 0", "point {point}: the next transfer");
        for peer in [prefill, decode] {
            let mut used = String::new();
            // What was given back is on its way.
            for _ in 0..10_000 {
                peer.order("used");
                used = peer.line();
                if used == "used 0" {
                    break;
                }
            }
            assert_eq!(used, "used 0", "point {point}: blocks are back");
        }
    }
    assert!(failed > 0, "no kill hit a transfer: {came} came");
    assert_eq!(world.node.handle().holds(), 0);
}

/// 64 KiB a block, so that a transfer takes a while.
const LARGE: KvLayout = KvLayout {
    blocks: 3_072,
    block_tokens: 16,
    layers: 1,
    planes: Planes::Latent,
    kv_heads: 1,
    head_dim: 4_096,
    element: Element::Int8,
    tp_size: 1,
    order: Order::BlockLayerPlane,
    head_order: HeadOrder::TokensOutermost,
};
const BLOCK_BYTES: u64 = 64 << 10;
const LARGE_TOKENS: u32 = 16 * 1_024;
/// Points at which a host stands still or is killed.
const STOPS: u64 = 8;

fn paint(slab: &Arc<Slab>, blocks: &[BlockRef], with: u8) {
    for block in indexes(blocks) {
        slab.write(u64::from(block) * BLOCK_BYTES, &[with; BLOCK_BYTES as usize]).unwrap();
    }
}

fn is_painted(slab: &Arc<Slab>, blocks: &[BlockRef], with: u8) -> bool {
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    indexes(blocks).into_iter().all(|block| {
        slab.read(u64::from(block) * BLOCK_BYTES, &mut bytes).unwrap();
        bytes.iter().all(|byte| *byte == with)
    })
}

/// The host's copies are the writes of this fabric: it is stopped in the middle of them, its engines go on, and then it
/// goes on, too.
#[test]
fn late_writes_of_a_host_that_stood_still_hurt_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kv.sock");
    let host_words = ["host", socket.to_str().unwrap(), "400"];
    let mut host = Peer::new(&host_words);
    assert_eq!(host.line(), "listens");
    let mut prefill = Engine::attach(&socket, "prefill-0", LARGE);
    let mut decode = Engine::attach(&socket, "decode-0", LARGE);
    for point in 0..STOPS {
        let kills = point % 4 == 3;
        let verb = if point % 2 == 0 { Verb::Write } else { Verb::Read };
        let job = Job::new(u128::from(point) + 1, verb, LARGE_TOKENS);
        let (from, to) = (prefill.allocate(LARGE_TOKENS), decode.allocate(LARGE_TOKENS));
        paint(&prefill.slabs[0], &from, 7);
        prefill.hold(&job, &from, Vec::new());
        prefill.filled(&job);
        decode.receive(&job, "prefill-0", &to, Vec::new());
        spin(point * 31 + 5);
        host.signal(if kills { Signal::KILL } else { Signal::STOP });
        decode.hear_until(|engine| !engine.detached.is_empty());
        prefill.hear_until(|engine| !engine.detached.is_empty());
        // The engine computes for itself, in blocks that nobody else was named.
        let own = decode.allocate(LARGE_TOKENS);
        let named = decode.named.len();
        assert!(named == 0 || own.iter().all(|block| !to.contains(block)));
        paint(&decode.slabs[0], &own, 9);
        if kills {
            host = Peer::new(&host_words);
            assert_eq!(host.line(), "listens");
        } else {
            host.signal(Signal::CONT);
        }
        decode.hear_until(|engine| engine.detached.is_empty());
        prefill.hear_until(|engine| engine.detached.is_empty());
        assert!(
            is_painted(&decode.slabs[0], &own, 9),
            "point {point}: a late write landed in a block of another"
        );
        decode.free(&own);
        if decode.outcome(job.attempt()) == Some(true) {
            let back = decode.table.is_held(to[0]);
            assert!(!back, "its blocks went back with the others when the host was found again");
        }
        assert_eq!((prefill.named.len(), decode.named.len()), (0, 0));

        let next = Job::new(1_000 + u128::from(point), verb, 256);
        let (from, to) = (prefill.allocate(256), decode.allocate(256));
        paint(&prefill.slabs[0], &from, point as u8);
        prefill.hold(&next, &from, Vec::new());
        prefill.filled(&next);
        decode.receive(&next, "prefill-0", &to, Vec::new());
        while decode.outcome(next.attempt()).is_none() {
            prefill.hear_once();
            decode.hear_once();
        }
        assert_eq!(decode.outcome(next.attempt()), Some(true), "point {point}: {:?}", decode.told.last());
        assert!(is_painted(&decode.slabs[0], &to, point as u8));
        decode.take_over(&to);
        decode.free(&to);
        prefill.hear_until(|engine| engine.named.is_empty());
        assert_eq!((prefill.used(), decode.used()), (0, 0), "point {point}");
    }
}
