//! Engines that say anything: the node refuses or does it, and goes on for everybody else.

use sluice_engine_sdk::wire::{
    Attempt, BlockRef, Direction, EngineId, Epoch, Extent, NewHold, NewReceive, Proof, Rect, Tokens,
    TransferId, Verb,
};
use sluice_engine_sdk::{SendError, Session};

use super::engine::{Engine, Job};
use super::exchanging::moves;
use super::kv::{DECODE, PREFILL};
use super::world::World;

/// Seeds, each with a world of its own.
const SEEDS: u64 = 24;
/// Messages of a seed.
const MESSAGES: u32 = 600;

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }

    /// Of few, so that messages meet.
    fn id(&mut self) -> TransferId {
        TransferId(u128::from(self.below(6)))
    }

    fn attempt(&mut self) -> Attempt {
        Attempt { id: self.id(), epoch: Epoch(self.below(3) as u32) }
    }

    /// Mostly sensible.
    fn extent(&mut self) -> Extent {
        let end_token = if self.one_in(20) { self.next() as u32 } else { 64 };
        let position_tokens = if self.one_in(20) { 0 } else { 16 };
        Extent { first_token: 0, end_token, position_tokens }
    }

    fn blocks(&mut self) -> Vec<BlockRef> {
        let count = if self.one_in(10) { self.below(9) } else { 4 };
        let first = self.below(40) as u32;
        (0..count as u32).map(|at| BlockRef { index: first + at, generation: self.below(3) }).collect()
    }

    fn proofs(&mut self) -> Vec<Proof> {
        let count = self.below(5);
        (0..count).map(|at| Proof([if self.one_in(9) { 0 } else { at as u8 }; 16])).collect()
    }

    fn ms(&mut self) -> u64 {
        match self.below(40) {
            0 => self.next(),
            1 => u64::MAX,
            _ => 1 + self.below(5_000),
        }
    }

    fn rect(&mut self) -> Rect {
        let (first, first_layer) = (self.below(4) as u32, self.below(4) as u16);
        let (wide, high) = (1 + self.below(4) as u32, 1 + self.below(3) as u16);
        let end_layer = (first_layer + high).min(4);
        Rect { first, end: first + wide, first_layer, end_layer }
    }
}

fn hold(random: &mut Random) -> NewHold {
    NewHold {
        id: random.id(),
        extent: random.extent(),
        blocks: random.blocks(),
        first_token: if random.one_in(20) { 5 } else { 0 },
        proofs: random.proofs(),
        fill_ms: random.ms(),
        ttl_ms: random.ms(),
        renewable: random.one_in(2),
        margin_ms: random.below(3),
    }
}

fn receive(random: &mut Random, source: &str) -> NewReceive {
    let first = 16 * random.below(3) as u32;
    NewReceive {
        attempt: random.attempt(),
        source: EngineId::of_name(if random.one_in(20) { "nobody" } else { source }),
        verb: if random.one_in(2) { Verb::Read } else { Verb::Write },
        direction: if random.one_in(2) { Direction::PrefillToDecode } else { Direction::DecodeToPrefill },
        extent: random.extent(),
        wanted: Tokens { first, end: first + 16 * random.below(4) as u32 },
        blocks: random.blocks(),
        first_token: if random.one_in(2) { first } else { 0 },
        proofs: if random.one_in(2) { Vec::new() } else { random.proofs() },
        first_byte_ms: random.ms(),
        whole_ms: random.ms(),
    }
}

fn say(random: &mut Random, session: &Session, other: &str) -> Result<(), SendError> {
    match random.below(9) {
        0 | 1 => session.hold(hold(random)),
        2 | 3 => session.receive(receive(random, other)),
        4 => session.ready(random.id(), random.rect()),
        5 => session.filled(random.id()),
        6 if random.one_in(2) => session.renew(random.id()),
        6 => session.release(random.id()),
        7 => session.abort(random.attempt()),
        _ => session.confirmed(random.attempt(), random.below(4) as u32, random.one_in(2)),
    }
}

#[test]
fn whatever_engines_say_others_are_served() {
    for seed in 0..SEEDS {
        let world = World::new();
        let names = ["prefill-9", "decode-9"];
        let layouts = [PREFILL, DECODE];
        let mut liars = [0, 1].map(|at| Engine::attach(&world.socket, names[at], layouts[at]));
        liars.iter_mut().for_each(|liar| liar.keeps_books = false);
        let mut prefill = Engine::attach(&world.socket, "prefill-0", PREFILL);
        let mut decode = Engine::attach(&world.socket, "decode-0", DECODE);
        ["prefill-0", "decode-0"].iter().for_each(|name| world.until_attached(name));
        let mut random = Random(seed);
        for number in 0..MESSAGES {
            let at = random.below(2) as usize;
            let rank =
                if random.one_in(12) { random.below(u64::from(layouts[at].tp_size)) as usize } else { 0 };
            // One that was cut off for what it said attaches again.
            let _ = say(&mut random, &liars[at].sessions[rank], names[1 - at]);
            if random.one_in(4) {
                liars[at].hear_once();
            }
            if number % 200 == 100 {
                world.skipped_ms.fetch_add(random.below(3_000), std::sync::atomic::Ordering::Relaxed);
                let job = Job::new(u128::from(1_000 + number), [Verb::Read, Verb::Write][at], 77);
                moves(&job, &mut prefill, &mut decode, random.one_in(2));
            }
        }
        drop(liars);
        let job = Job::new(2_000, Verb::Read, 77);
        moves(&job, &mut prefill, &mut decode, false);
        drop((prefill, decode));
        let figures = world.until_nobody_is_attached();
        assert_eq!((world.node.handle().holds(), figures.posts), (0, 0), "seed {seed}: {figures:?}");
        world.node.stop().unwrap();
    }
}
