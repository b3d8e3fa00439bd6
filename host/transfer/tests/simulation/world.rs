//! The world of a schedule: processes, their memory, what is under way between them, and what must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_transfer::protocol::{Attempt, BlockRef, Link, Peer, Rect, TransferId};

use crate::coverage::Coverage;
use crate::flaw::Flaw;
use crate::flight::Flight;
use crate::job::{Asked, Job};
use crate::node::Node;
use crate::random::mix;
use crate::schedule::{Setting, Step};

/// Producers and consumers: 0 is a decode engine, 1 and 2 are the processes of a prefill engine.
pub const NODES: usize = 3;

/// What does not hold, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// T1 to T6, or `live`.
    pub rule: &'static str,
    pub what: String,
}

/// A message under way.
#[derive(Clone, Debug)]
pub struct Envelope {
    pub from: Peer,
    pub to: Peer,
    pub bytes: Vec<u8>,
    pub sent_ms: u64,
}

/// What the world knows of an attempt, by its consumer.
#[derive(Clone, Debug)]
pub struct Landing {
    pub job: usize,
    pub node: usize,
    pub peer: Peer,
    pub blocks: Arc<[BlockRef]>,
    pub asked: Asked,
    pub deadline_ms: u64,
    pub told: bool,
}

/// A READ: what it read, whether to its end, and whether its holder has vouched for it since.
#[derive(Clone, Copy, Debug)]
pub struct ReadFate {
    pub link: Link,
    pub rect: Rect,
    pub done: bool,
    pub confirmed: bool,
}

/// A hold: its blocks, and how often it has ended.
#[derive(Clone, Debug)]
pub struct HoldFate {
    pub blocks: Arc<[BlockRef]>,
    pub ends: u32,
    /// When its lease ends, once a heartbeat has named a time.
    pub until_ms: Option<u64>,
    /// Taken back by the engine before it was told that it may.
    pub stolen: bool,
}

#[derive(Debug)]
pub struct World {
    pub now_ms: u64,
    pub setting: Setting,
    pub flaw: Option<Flaw>,
    pub nodes: Vec<Node>,
    pub jobs: Vec<Job>,
    pub wire: Vec<Envelope>,
    pub flights: Vec<Flight>,
    pub closings: BTreeSet<(usize, Peer)>,
    pub landings: BTreeMap<Attempt, Landing>,
    pub reads: BTreeMap<(Attempt, u32), ReadFate>,
    /// What became of each hold, by the process that had it.
    pub holds: BTreeMap<(TransferId, Peer), HoldFate>,
    pub coverage: Coverage,
    pub violation: Option<Violation>,
    pub trace: Option<Vec<String>>,
    pub keys: u64,
}

impl World {
    pub fn new(setting: Setting, flaw: Option<Flaw>, traced: bool) -> Self {
        let nodes = (0..NODES).map(|number| Node::new(number, 0, setting.limits)).collect();
        let jobs = setting
            .jobs
            .iter()
            .enumerate()
            .map(|(at, spec)| Job::new(spec.clone(), setting.seed, at))
            .collect();
        Self {
            now_ms: mix(setting.seed) % 1000,
            setting,
            flaw,
            nodes,
            jobs,
            wire: Vec::new(),
            flights: Vec::new(),
            closings: BTreeSet::new(),
            landings: BTreeMap::new(),
            reads: BTreeMap::new(),
            holds: BTreeMap::new(),
            coverage: Coverage::default(),
            violation: None,
            trace: traced.then(Vec::new),
            keys: 0,
        }
    }

    /// Plays the steps until something does not hold.
    pub fn play(&mut self, steps: &[Step]) {
        for step in steps {
            self.step(*step);
            self.check();
            if self.violation.is_some() {
                return;
            }
        }
    }

    pub fn violate(&mut self, rule: &'static str, what: String) {
        self.log(|| format!("VIOLATION of {rule}: {what}"));
        self.violation.get_or_insert(Violation { rule, what });
    }

    pub fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>7} ms  {}", self.now_ms, line()));
        }
    }

    /// The process of an engine, whatever its life.
    pub fn node_of(&self, peer: Peer) -> usize {
        peer.engine.0 as usize
    }
}
