//! Who else wants blocks: other requests, and engines that take back what they hold.

use std::sync::Arc;

use sluice_transfer::protocol::{BlockRef, Lease, Message, Verb, wire};

use crate::job::{Job, Stage};
use crate::memory::{LAYERS, Owner, Place, SHARDS};
use crate::random::mix;
use crate::stepping::nth;
use crate::world::{Envelope, World};

impl World {
    pub fn bystander(&mut self, at: usize, pick: u16) {
        if !self.nodes[at].works() {
            return;
        }
        let memory = &mut self.nodes[at].memory;
        let others: Vec<_> = (0..memory.blocks.len() as u32)
            .filter(|block| memory.blocks[*block as usize].owner == Owner::Request)
            .collect();
        // Half of the time a request ends: its block is free again.
        if pick.is_multiple_of(2) && others.len() > 2 {
            let index = others[pick as usize % others.len()];
            let kept = self.jobs.iter().any(|j| {
                j.spec.consumer == at && j.got.iter().flat_map(|b| b.iter()).any(|b| b.index == index)
            });
            if !kept {
                let generation = memory.blocks[index as usize].generation;
                memory.give_back(BlockRef { index, generation });
            }
            return;
        }
        for block in memory.take(1, Owner::Request).into_iter().flatten() {
            for layer in 0..LAYERS {
                for shard in 0..SHARDS {
                    let word = mix(u64::from(pick) << 32 | (layer * 8 + shard) as u64);
                    memory.write(Place { block, layer, shard }, word);
                }
            }
        }
    }

    pub fn retire(&mut self, pick: u16) {
        let at = pick as usize % self.jobs.len();
        let consumer = self.jobs[at].spec.consumer;
        if self.nodes[consumer].works() {
            let blocks: Option<Arc<[_]>> = self.jobs[at].got.take();
            for block in blocks.iter().flat_map(|blocks| blocks.iter()) {
                self.nodes[consumer].memory.give_back(*block);
            }
        }
    }

    /// Only of holds that are read from: what writes of ours take must stay until they are over, and does.
    pub fn steal(&mut self, pick: u16, b: u16) {
        let read = |job: &&Job| job.spec.verb == Verb::Read;
        let jobs: Vec<_> = self.jobs.iter().filter(read).cloned().collect();
        let Some(job) = nth(&jobs, pick) else { return };
        let at = job.spec.producers[b as usize % job.spec.producers.len()];
        let node = &mut self.nodes[at];
        let Some(fate) = self.holds.get_mut(&(job.id, node.peer)).filter(|fate| fate.ends == 0) else {
            return;
        };
        if !node.works() || std::mem::replace(&mut fate.stolen, true) {
            return;
        }
        node.memory.give_back_all(&fate.blocks);
        self.coverage.note("blocks taken back behind the owner's back");
        let producer = job.spec.producers.iter().position(|node| *node == at);
        for own in self.jobs.iter_mut().filter(|own| own.id == job.id) {
            producer.into_iter().for_each(|producer| own.stages[producer] = Stage::Over);
        }
        if b.is_multiple_of(2) {
            let (from, to) = (self.nodes[at].peer, self.nodes[at].peer);
            let mut bytes = Vec::new();
            wire::encode(&Message::Hold(job.id, Lease::Release), &mut bytes);
            self.wire.push(Envelope { from, to, bytes, sent_ms: self.now_ms });
        }
    }
}
