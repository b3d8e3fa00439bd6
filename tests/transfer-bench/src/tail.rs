//! Push with progressive readiness: how long decode waits after the prefill's end, beside the time of one chunk.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sluice_engine_sdk::wire::ToEngine;
use sluice_harness::budget::line;
use sluice_harness::quantiles::quantile_ms;
use sluice_harness::table::Table;
use sluice_transfer::exchange::{
    Answer, Attached, Exchange, Handle, Hold, HostFabric, Outcome, Receive, Running,
};
use sluice_transfer::fabric::{ShmFabric, ShmSettings};
use sluice_transfer::layout::{
    Blocks, ByteCopy, Element, Geometry, HeadOrder, KvLayout, Order, Pair, Part, Plan, Planes,
};
use sluice_transfer::protocol::limits::Limits;
use sluice_transfer::protocol::{
    Attempt, BlockRef, Direction, EngineId, Epoch, Extent, Generations, Grid, Peer, Rank, Rect, Tokens,
    TransferId, Verb,
};

use crate::rounds::{Case, Time, measure};
use crate::sides::{Sides, Way};

const TOKENS: u32 = 16_384;
const CHUNKS: u32 = 16;
/// From one chunk's end to the next: 200k tokens/s, faster than any prefill, so that there is little to hide behind.
const CHUNK_TIME: Duration = Duration::from_millis(5);
/// 16 KiB a token, 256 MiB in all, 16 MiB a chunk.
const LAYOUT: KvLayout = KvLayout {
    blocks: TOKENS / 16,
    block_tokens: 16,
    layers: 8,
    planes: Planes::KeyValue,
    kv_heads: 4,
    head_dim: 128,
    element: Element::Bf16,
    tp_size: 1,
    order: Order::LayerPlaneBlock,
    head_order: HeadOrder::TokensOutermost,
};
const EXTENT: Extent = Extent { first_token: 0, end_token: TOKENS, position_tokens: LAYOUT.block_tokens };
/// Blocks that are neighbours.
const RUN_BLOCKS: u64 = 8;
/// What decode may wait for beyond the last chunk's time, in milliseconds.
const ALLOWED_MS: f64 = 1.0;
/// No wait here takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Blocks are used by one transfer at a time here, which waits for their end.
#[derive(Debug)]
struct AlwaysCurrent;

impl Generations for AlwaysCurrent {
    fn is_current(&self, _: BlockRef) -> bool {
        true
    }
}

/// Prints a table and the budget.
pub fn run(rounds: usize) -> anyhow::Result<()> {
    let sides = Sides::new(Geometry::new(LAYOUT)?.rank_bytes())?;
    let lists = [5, 6].map(blocks);
    let all = copies(&lists, 0..TOKENS)?;
    let last = copies(&lists, TOKENS - TOKENS / CHUNKS..TOKENS)?;
    let chunk_bytes: u64 = last.iter().map(|copy| copy.len).sum();
    let mut way = Way::new(&sides, ShmSettings::default().threads)?;
    let node = RefCell::new(Node::start(&sides, lists)?);
    for verb in [Verb::Write, Verb::Read] {
        sides.wipe(&all)?;
        node.borrow_mut().hand_over(verb)?;
        sides.check(&all)?;
    }
    let cases = vec![
        Case::told("the last chunk alone, by the fabric", chunk_bytes, || {
            // Copy threads rest before it as they do before a chunk of a prefill.
            std::thread::sleep(CHUNK_TIME);
            let began = Instant::now();
            way.send(last.iter().copied())?;
            Ok(began.elapsed())
        }),
        Case::told("push as it is computed", chunk_bytes * u64::from(CHUNKS), || {
            node.borrow_mut().hand_over(Verb::Write)
        }),
        Case::told("pull after the prefill", chunk_bytes * u64::from(CHUNKS), || {
            node.borrow_mut().hand_over(Verb::Read)
        }),
    ];
    let times = measure(cases, rounds)?;
    show(&times, &node.into_inner())
}

fn show(times: &[Time], node: &Node) -> anyhow::Result<()> {
    let figures = node.handle.figures();
    ensure!(figures.failed.is_empty(), "transfers failed: {:?}", figures.failed);
    let overlap = |verb| {
        let of = figures.flows.iter().find(|(flow, _)| flow.verb == verb);
        of.and_then(|(_, figures)| figures.overlap()).map(|share| format!("{:.1}%", share * 100.0))
    };
    let hidden = [None, overlap(Verb::Write), overlap(Verb::Read)];
    let mut table =
        Table::new(&["from the prefill's end until decode has all", "MiB", "p50 ms", "p99 ms", "hidden"]);
    let at = |time: &Time, share| quantile_ms(&time.all, share).unwrap_or(f64::NAN);
    for (time, hidden) in times.iter().zip(hidden) {
        table.row([
            time.name.clone(),
            (time.bytes >> 20).to_string(),
            format!("{:.2}", at(time, 0.5)),
            format!("{:.2}", at(time, 0.99)),
            hidden.unwrap_or_default(),
        ]);
    }
    println!(
        "{TOKENS} tokens of {} KiB in {CHUNKS} chunks, one each {} ms\n{table}",
        Geometry::new(LAYOUT)?.rank_bytes() / u64::from(TOKENS) / 1024,
        CHUNK_TIME.as_millis()
    );
    let [alone, push, ..] = times else { anyhow::bail!("nothing was timed") };
    let beyond = |share| at(push, share) - at(alone, share);
    let measured = format!(
        "{:.2} ms, the last chunk's time {:+.2} ms (p50; p99: {:.2} ms, {:+.2} ms)",
        at(push, 0.5),
        beyond(0.5),
        at(push, 0.99),
        beyond(0.99)
    );
    let target = format!("<= the last chunk's time + {ALLOWED_MS} ms");
    println!("{}\n", line("transfer.tail", &target, &measured, beyond(0.5) <= ALLOWED_MS));
    Ok(())
}

/// A sequence's blocks in a slab: runs of neighbours in an order that is the seed's.
fn blocks(seed: u64) -> Vec<u32> {
    let runs = crate::copies::shuffled(u64::from(LAYOUT.blocks) / RUN_BLOCKS, seed).into_iter();
    runs.flat_map(|run| run * RUN_BLOCKS..(run + 1) * RUN_BLOCKS).map(|block| block as u32).collect()
}

fn copies([source, sink]: &[Vec<u32>; 2], tokens: Range<u32>) -> anyhow::Result<Vec<ByteCopy>> {
    let geometry = Geometry::new(LAYOUT)?;
    let pair = Pair::new(geometry, geometry)?;
    let mut plan = Plan::default();
    let side = |blocks| Blocks { blocks, first_token: 0 };
    let part = Part { source: side(source), sink: side(sink), tokens, layers: 0..LAYOUT.layers };
    plan.fill(&pair, &pair.links()[0], &part)?;
    Ok(plan.copies().collect())
}

/// An exchange with its thread, and two engines whose computing is a pause.
struct Node {
    handle: Handle,
    prefill: Attached,
    decode: Attached,
    lists: [Vec<u32>; 2],
    transfers: u64,
    _running: Running,
}

impl Node {
    fn start(sides: &Sides, lists: [Vec<u32>; 2]) -> anyhow::Result<Self> {
        let fabric: Arc<dyn HostFabric> = Arc::new(ShmFabric::start(ShmSettings::default())?);
        let began = Instant::now();
        let clock = Arc::new(move || began.elapsed().as_millis() as u64);
        let running = Exchange::start(fabric, Limits::default(), clock)?;
        let handle = running.handle().clone();
        let attach = |name, slab| {
            let peer = Peer { engine: EngineId::of_name(name), incarnation: 1 };
            handle.attach(peer, LAYOUT, vec![Arc::clone(slab)], Arc::new(AlwaysCurrent))
        };
        let (prefill, decode) = (attach("prefill", &sides.source)?, attach("decode", &sides.sink)?);
        Ok(Self { handle, prefill, decode, lists, transfers: 0, _running: running })
    }

    /// A prefill and its KV's way to decode: the time from the prefill's end until decode was told that it has all.
    fn hand_over(&mut self, verb: Verb) -> anyhow::Result<Duration> {
        self.transfers += 1;
        let attempt = Attempt { id: TransferId(self.transfers.into()), epoch: Epoch(1) };
        self.taken(self.handle.hold(self.prefill.peer, self.hold(attempt.id))?)?;
        let receive = self.receive(attempt, verb);
        if verb == Verb::Write {
            self.taken(self.handle.receive(self.decode.peer, receive.clone())?)?;
        }
        let mut due = Instant::now();
        for chunk in 0..CHUNKS {
            due += CHUNK_TIME;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if chunk + 1 < CHUNKS {
                self.handle.ready(self.prefill.peer, attempt.id, Rank(0), self.cells(chunk)?)?;
            }
        }
        let ended = Instant::now();
        // This says that the last chunk is ready, too.
        self.handle.filled(self.prefill.peer, attempt.id)?;
        if verb == Verb::Read {
            self.taken(self.handle.receive(self.decode.peer, receive)?)?;
        }
        until(&mut self.decode, |event| *event == ToEngine::Completed { attempt })?;
        let took = ended.elapsed();
        until(&mut self.prefill, |event| matches!(event, ToEngine::Freed { .. }))?;
        Ok(took)
    }

    fn hold(&self, id: TransferId) -> Hold {
        Hold {
            id,
            extent: EXTENT,
            blocks: self.blocks(0),
            first_token: 0,
            fill_ms: 60_000,
            ttl_ms: 30_000,
            renewable: false,
            margin_ms: 1_000,
        }
    }

    fn receive(&self, attempt: Attempt, verb: Verb) -> Receive {
        Receive {
            attempt,
            from: self.prefill.peer,
            verb,
            direction: Direction::PrefillToDecode,
            extent: EXTENT,
            wanted: Tokens { first: EXTENT.first_token, end: EXTENT.end_token },
            blocks: self.blocks(1),
            first_token: 0,
            first_byte_ms: 30_000,
            whole_ms: 60_000,
        }
    }

    fn blocks(&self, side: usize) -> Arc<[BlockRef]> {
        let generation = self.transfers;
        self.lists[side].iter().map(|index| BlockRef { index: *index, generation }).collect()
    }

    fn cells(&self, chunk: u32) -> anyhow::Result<Rect> {
        let grid: Grid = EXTENT.grid(LAYOUT.layers).context("the extent is a grid")?;
        let positions = grid.positions / CHUNKS;
        Ok(Rect { first: chunk * positions, end: (chunk + 1) * positions, ..grid.whole() })
    }

    fn taken(&self, mut answer: Answer<Outcome<()>>) -> anyhow::Result<()> {
        Ok(answer.wait(PATIENCE).context("the exchange does not answer")???)
    }
}

/// Hears events until one is awaited; a failure is an error.
fn until(engine: &mut Attached, awaited: impl Fn(&ToEngine) -> bool) -> anyhow::Result<()> {
    loop {
        let event = engine.events.next(PATIENCE)?.context("an event that was due did not come")?;
        if awaited(&event) {
            return Ok(());
        }
        ensure!(!matches!(event, ToEngine::Failed { .. }), "a transfer failed: {event:?}");
    }
}
