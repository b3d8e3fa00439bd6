//! What engines do of their own: compute, receive.

use std::sync::Arc;

use sluice_transfer::protocol::{BlockRef, Event, Feed, NewHold, NewSink, Rank, Rect, Refused};

use crate::job::{Asked, Stage};
use crate::memory::{LAYERS, Owner, Place, SHARDS};
use crate::world::{HoldFate, Landing, World};

impl World {
    /// A producing process goes one step further with a job.
    pub fn produce(&mut self, pick: u16, style: u16) {
        let at = pick as usize % self.jobs.len();
        let producer = (pick as usize / self.jobs.len()) % self.jobs[at].stages.len();
        let node = self.jobs[at].spec.producers[producer];
        if !self.nodes[node].works() {
            return;
        }
        match self.jobs[at].stages[producer].clone() {
            Stage::Idle => self.begin_hold(at, producer, node, style),
            Stage::Filling { left, .. } if left.is_empty() || style.is_multiple_of(16) && left.len() == 1 => {
                for (rank, rect) in left {
                    self.compute(at, producer, node, rank, rect);
                }
                self.jobs[at].stages[producer] = Stage::Filled;
                let id = self.jobs[at].id;
                self.give(node, Event::Filled(id));
            }
            Stage::Filling { blocks, mut left } => {
                let (rank, rect) = left.remove(0);
                self.compute(at, producer, node, rank, rect);
                self.jobs[at].stages[producer] = Stage::Filling { blocks, left };
                let id = self.jobs[at].id;
                self.give(node, Event::Ready { id, rank, rect });
            }
            Stage::Filled | Stage::Over => {}
        }
    }

    fn begin_hold(&mut self, at: usize, producer: usize, node: usize, style: u16) {
        let job = &self.jobs[at];
        let (id, spec) = (job.id, job.spec.clone());
        let Some(blocks) = self.nodes[node].memory.take(spec.grid.positions as usize, Owner::Hold(id)) else {
            return;
        };
        let blocks: Arc<[_]> = blocks.into();
        let hold = NewHold {
            id,
            grid: spec.grid,
            blocks: blocks.clone(),
            ranks: job.ranks_of(producer),
            fill_ms: spec.whole_ms,
            ttl_ms: spec.ttl_ms,
            renewable: spec.renewable,
            margin_ms: spec.ttl_ms / 5,
        };
        let left = job.chunks(producer, style.is_multiple_of(2));
        if self.landings.iter().any(|(attempt, landing)| attempt.id == id && !landing.told) {
            self.coverage.note("registered before the hold");
        }
        self.log(|| format!("node {node}: {hold:?}"));
        let mut out = Vec::new();
        match self.nodes[node].owner.hold(hold, self.now_ms, &mut out) {
            Ok(()) => {
                let peer = self.nodes[node].peer;
                self.holds.insert(
                    (id, peer),
                    HoldFate { blocks: blocks.clone(), ends: 0, until_ms: None, stolen: false },
                );
                self.jobs[at].stages[producer] = Stage::Filling { blocks, left };
                self.act_all(node, out);
            }
            Err(refused) => {
                self.coverage.note(if refused == Refused::Used {
                    "hold refused, used"
                } else {
                    "hold refused, full"
                });
                self.nodes[node].memory.give_back_all(&blocks);
            }
        }
    }

    fn compute(&mut self, at: usize, producer: usize, node: usize, rank: Rank, rect: Rect) {
        let Stage::Filling { blocks, .. } = &self.jobs[at].stages[producer] else { return };
        let job = &self.jobs[at];
        for position in rect.first..rect.end {
            for layer in rect.first_layer..rect.end_layer {
                for shard in job.shards_of(rank) {
                    let place = Place { block: blocks[position as usize], layer: layer.into(), shard };
                    self.nodes[node].memory.write(place, job.word(position, layer, shard));
                }
            }
        }
    }

    /// A consumer begins a job, or tries it again.
    pub fn receive(&mut self, at: usize) {
        const MAX_EPOCHS: u32 = 3;
        let job = &self.jobs[at];
        let node = job.spec.consumer;
        // A later epoch may also take the place of one that is still open. That is a fault: what one of two producers has
        // delivered by then is gone.
        let wanted = job.got.is_none() && !job.completed && job.epoch < MAX_EPOCHS;
        if !self.nodes[node].works()
            || !wanted
            || (job.open.is_some() && (!self.setting.faults || job.epoch.is_multiple_of(2)))
        {
            return;
        }
        let (attempt, spec) = (job.next_attempt(), job.spec.clone());
        let asked = job.asked();
        let count = asked.named.len();
        let owner = Owner::Landing(attempt);
        let links: Vec<_> = (0..job.stages.len()).map(|producer| job.links_of(producer)).collect();
        let memory = &mut self.nodes[node].memory;
        let Some(blocks) = memory.take(count, owner) else { return };
        let staging = if spec.staged { memory.take_slots(count, owner) } else { None };
        if spec.staged && staging.is_none() {
            memory.give_back_all(&blocks);
            return;
        }
        let (blocks, staging): (Arc<[_]>, Option<Arc<[_]>>) = (blocks.into(), staging.map(Into::into));
        self.fill_unwanted(at, &asked, &blocks);
        let peers: Vec<_> = spec.producers.iter().map(|producer| self.nodes[*producer].peer).collect();
        let feeds = peers.iter().zip(links).map(|(peer, links)| Feed {
            peer: *peer,
            key: self.endpoint(node, *peer),
            links,
        });
        let sink = NewSink {
            attempt,
            verb: spec.verb,
            direction: spec.direction,
            grid: spec.grid,
            wanted: asked.wanted,
            blocks: blocks.clone(),
            feeds: feeds.collect(),
            staging: staging.clone(),
            first_byte_ms: spec.first_byte_ms,
            whole_ms: spec.whole_ms,
        };
        self.jobs[at].epoch += 1;
        self.log(|| format!("node {node}: {sink:?}"));
        let mut out = Vec::new();
        if let Err(refused) = self.nodes[node].owner.receive(sink, self.now_ms, &mut out) {
            self.coverage.note(if refused == Refused::Used {
                "sink refused, used"
            } else {
                "sink refused, full"
            });
            for block in blocks.iter().chain(staging.iter().flat_map(|slots| slots.iter())) {
                self.nodes[node].memory.give_back(*block);
            }
            return;
        }
        let (peer, deadline_ms) = (self.nodes[node].peer, self.now_ms + spec.whole_ms);
        self.landings
            .insert(attempt, Landing { job: at, node, peer, blocks, asked, deadline_ms, told: false });
        self.act_all(node, out);
        if self.landings[&attempt].told {
            self.violate("live", format!("{attempt} ended as it began"));
        }
        self.jobs[at].open = Some(attempt);
    }

    /// What a consumer has already stays as it is, whatever lands beside it.
    fn fill_unwanted(&mut self, at: usize, asked: &Asked, blocks: &[BlockRef]) {
        let job = &self.jobs[at];
        let memory = &mut self.nodes[job.spec.consumer].memory;
        for (position, block) in asked.named.clone().zip(blocks) {
            if (asked.wanted.first..asked.wanted.end).contains(&position) {
                continue;
            }
            for (layer, shard) in (0..LAYERS).flat_map(|layer| (0..SHARDS).map(move |shard| (layer, shard))) {
                memory.write(Place { block: *block, layer, shard }, job.own_word(position, layer, shard));
            }
        }
    }
}
