//! One transfer as its engines see it: what is to be moved, and how far they are.

use std::ops::Range;
use std::sync::Arc;

use sluice_transfer::protocol::{Attempt, BlockRef, Epoch, Link, Rank, Rect, TransferId};

use crate::memory::SHARDS;
use crate::random::{Random, mix};
use crate::schedule::JobSpec;

#[derive(Clone, Debug)]
pub struct Job {
    pub spec: JobSpec,
    pub id: TransferId,
    nonce: u64,
    /// By the order of `spec.producers`.
    pub stages: Vec<Stage>,
    pub epoch: u32,
    pub open: Option<Attempt>,
    pub got: Option<Arc<[BlockRef]>>,
    pub completed: bool,
}

/// What a consumer asks for at one attempt.
#[derive(Clone, Debug)]
pub struct Asked {
    pub wanted: Rect,
    /// The positions that its blocks are of: those that are wanted, or all of them, the others being its own already.
    pub named: Range<u32>,
}

/// How far a producing process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    Idle,
    Filling {
        blocks: Arc<[BlockRef]>,
        left: Vec<(Rank, Rect)>,
    },
    Filled,
    /// Its hold is over, or its process died.
    Over,
}

/// The shards that both ranks of a link have.
pub fn shards(link: Link, source_tp: usize, sink_tp: usize) -> std::ops::Range<usize> {
    let of = |rank: Rank, tp: usize| {
        let each = SHARDS / tp;
        (rank.0 as usize * each)..((rank.0 as usize + 1) * each)
    };
    let (from, to) = (of(link.from, source_tp), of(link.to, sink_tp));
    from.start.max(to.start)..from.end.min(to.end)
}

impl Job {
    pub fn new(spec: JobSpec, seed: u64, number: usize) -> Self {
        let nonce = mix(seed ^ mix(number as u64 + 1));
        let stages = vec![Stage::Idle; spec.producers.len()];
        let id = TransferId(u128::from(nonce));
        Self { spec, id, nonce, stages, epoch: 0, open: None, got: None, completed: false }
    }

    /// What one word of it must be.
    pub fn word(&self, position: u32, layer: u16, shard: usize) -> u64 {
        mix(self.nonce ^ mix(u64::from(position) << 32 | u64::from(layer) << 16 | shard as u64))
    }

    pub fn ranks_of(&self, producer: usize) -> Vec<Rank> {
        let each = self.spec.source_tp / self.spec.producers.len();
        (producer * each..(producer + 1) * each).map(|rank| Rank(rank as u16)).collect()
    }

    /// Every pair of ranks that share shards, by producing process.
    pub fn links_of(&self, producer: usize) -> Vec<Link> {
        let targets = (0..self.spec.sink_tp).map(|rank| Rank(rank as u16));
        let pairs =
            targets.flat_map(|to| self.ranks_of(producer).into_iter().map(move |from| Link { from, to }));
        pairs.filter(|link| !self.shards(*link).is_empty()).collect()
    }

    pub fn links(&self) -> Vec<Link> {
        (0..self.stages.len()).flat_map(|producer| self.links_of(producer)).collect()
    }

    pub fn shards(&self, link: Link) -> std::ops::Range<usize> {
        shards(link, self.spec.source_tp, self.spec.sink_tp)
    }

    pub fn shards_of(&self, rank: Rank) -> std::ops::Range<usize> {
        let each = SHARDS / self.spec.source_tp;
        (rank.0 as usize * each)..((rank.0 as usize + 1) * each)
    }

    /// The parts in which a producing process computes it: by layers or by chunks, rank by rank.
    pub fn chunks(&self, producer: usize, by_layers: bool) -> Vec<(Rank, Rect)> {
        let whole = self.spec.grid.whole();
        let parts: Vec<Rect> = if by_layers {
            (0..whole.end_layer).map(|l| Rect { first_layer: l, end_layer: l + 1, ..whole }).collect()
        } else {
            (0..whole.end).map(|at| Rect { first: at, end: at + 1, ..whole }).collect()
        };
        let ranks = self.ranks_of(producer);
        parts.into_iter().flat_map(|part| ranks.iter().map(move |rank| (*rank, part))).collect()
    }

    /// What it lacks at the next attempt: all of it, or what a cache of this moment leaves.
    pub fn asked(&self) -> Asked {
        const WHOLE_PERCENT: u64 = 35;
        let (whole, mut random) =
            (self.spec.grid.whole(), Random::new(mix(self.nonce) ^ u64::from(self.epoch)));
        let first = random.below(whole.end as usize) as u32;
        let end = first + 1 + random.below((whole.end - first) as usize) as u32;
        let wanted = if random.chance(WHOLE_PERCENT) { whole } else { Rect { first, end, ..whole } };
        let named = if random.chance(50) { 0..whole.end } else { wanted.first..wanted.end };
        Asked { wanted, named }
    }

    /// What a consumer had of its own where something else might land.
    pub fn own_word(&self, position: u32, layer: usize, shard: usize) -> u64 {
        mix(!self.nonce ^ mix(u64::from(position) << 32 | (layer as u64) << 16 | shard as u64))
    }

    pub fn next_attempt(&self) -> Attempt {
        Attempt { id: self.id, epoch: Epoch(self.epoch + 1) }
    }
}
