//! A producer and a consumer on a quiet line; operations are done when a test says so.

use std::collections::VecDeque;

use sluice_transfer::protocol::limits::Limits;
use sluice_transfer::protocol::{
    Action, Attempt, BlockRef, Direction, EngineId, Epoch, Event, Feed, Generations, Grid, Key, Link,
    Message, NewHold, NewSink, Op, Outcome, Peer, Post, Rank, TransferId, Transfers, Verb,
};

pub const ID: TransferId = TransferId(7);
pub const GRID: Grid = Grid { positions: 4, layers: 3 };
pub const KEY: Key = Key(1);
pub const MARGIN_MS: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Producer,
    Consumer,
}

impl Side {
    pub fn peer(self) -> Peer {
        Peer { engine: EngineId(self as u128), incarnation: 1 }
    }
}

pub struct Always(pub bool);

impl Generations for Always {
    fn is_current(&self, _: BlockRef) -> bool {
        self.0
    }
}

pub struct Pair {
    pub now_ms: u64,
    pub producer: Transfers,
    pub consumer: Transfers,
    /// Whether the producer's blocks are what they were.
    pub current: bool,
    /// Whether messages arrive.
    pub connected: bool,
    wire: VecDeque<(Side, Message)>,
    pub posts: Vec<(Side, Post)>,
    /// All that was done beside messages and posts.
    pub told: Vec<(Side, Action)>,
}

pub fn attempt(epoch: u32) -> Attempt {
    Attempt { id: ID, epoch: Epoch(epoch) }
}

pub fn blocks(first: u32) -> std::sync::Arc<[BlockRef]> {
    (first..first + GRID.positions).map(|index| BlockRef { index, generation: 0 }).collect()
}

pub fn ranks(count: u16) -> Vec<Rank> {
    (0..count).map(Rank).collect()
}

/// Four ranks feed two, or as many as are asked for.
pub fn links(from: u16, to: u16) -> Vec<Link> {
    (0..from.max(to))
        .map(|at| Link { from: Rank(at * from / from.max(to)), to: Rank(at * to / from.max(to)) })
        .collect()
}

pub fn new_hold(id: TransferId) -> NewHold {
    NewHold {
        id,
        grid: GRID,
        blocks: blocks(0),
        ranks: ranks(4),
        fill_ms: 60_000,
        ttl_ms: 30_000,
        renewable: true,
        margin_ms: MARGIN_MS,
    }
}

pub fn new_sink(verb: Verb, epoch: u32) -> NewSink {
    NewSink {
        attempt: attempt(epoch),
        verb,
        direction: Direction::PrefillToDecode,
        grid: GRID,
        wanted: GRID.whole(),
        blocks: blocks(100 * epoch),
        staging: None,
        feeds: vec![Feed { peer: Side::Producer.peer(), key: KEY, links: links(4, 2) }],
        first_byte_ms: 2_000,
        whole_ms: 10_000,
    }
}

impl Pair {
    pub fn new() -> Self {
        Self {
            now_ms: 1_000,
            producer: Transfers::new(Limits::default()),
            consumer: Transfers::new(Limits::default()),
            current: true,
            connected: true,
            wire: VecDeque::new(),
            posts: Vec::new(),
            told: Vec::new(),
        }
    }

    fn owner(&mut self, side: Side) -> &mut Transfers {
        match side {
            Side::Producer => &mut self.producer,
            Side::Consumer => &mut self.consumer,
        }
    }

    pub fn give(&mut self, side: Side, event: Event) {
        let (now_ms, current) = (self.now_ms, self.current);
        let mut out = Vec::new();
        self.owner(side).handle(event, now_ms, &Always(current), &mut out);
        self.take(side, out);
    }

    fn take(&mut self, side: Side, out: Vec<Action>) {
        for action in out {
            match action {
                Action::Send { to, message } if to == Side::Producer.peer() => {
                    self.wire.push_back((Side::Producer, message));
                }
                Action::Send { message, .. } => self.wire.push_back((Side::Consumer, message)),
                Action::Post(post) => self.posts.push((side, post)),
                Action::CopyOut(post) => self.posts.push((side, post)),
                other => self.told.push((side, other)),
            }
        }
    }

    /// Delivers all that is under way, and what follows from it.
    pub fn deliver(&mut self) {
        while let Some((to, message)) = self.wire.pop_front() {
            let from = if to == Side::Producer { Side::Consumer } else { Side::Producer };
            if self.connected {
                self.give(to, Event::Message { from: from.peer(), message });
            }
        }
    }

    pub fn hold(&mut self, spec: NewHold) {
        let mut out = Vec::new();
        let now_ms = self.now_ms;
        self.producer.hold(spec, now_ms, &mut out).expect("a hold that is fine");
        self.take(Side::Producer, out);
        self.deliver();
    }

    pub fn receive(&mut self, spec: NewSink) {
        let mut out = Vec::new();
        let now_ms = self.now_ms;
        self.consumer.receive(spec, now_ms, &mut out).expect("a sink that is fine");
        self.take(Side::Consumer, out);
        self.deliver();
    }

    /// Ends the oldest operation that is under way.
    pub fn end_one(&mut self, outcome: Outcome) -> Post {
        let (side, post) = self.posts.remove(0);
        self.give(side, Event::Posted { op: post.op, outcome });
        self.deliver();
        post
    }

    pub fn copied(&mut self, op: Op) {
        self.posts.retain(|(_, post)| post.op != op);
        self.give(Side::Consumer, Event::Copied(op));
        self.deliver();
    }

    /// Ends every operation, and those that follow.
    pub fn end_all(&mut self) {
        while !self.posts.is_empty() {
            self.end_one(Outcome::Done);
        }
    }

    pub fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.give(Side::Producer, Event::Tick);
        self.give(Side::Consumer, Event::Tick);
        self.deliver();
    }

    /// What a side was told of one kind.
    pub fn count(&self, side: Side, is: impl Fn(&Action) -> bool) -> usize {
        self.told.iter().filter(|(of, action)| *of == side && is(action)).count()
    }

    pub fn is_at_rest(&self) -> bool {
        let open = |owner: &Transfers| owner.holds().len() + owner.sources().len() + owner.sinks().len();
        open(&self.producer) + open(&self.consumer) == 0
    }
}
