//! From the queue into the batch: prefix cache first, then KV from another engine, then computing.

use super::sequence::{Sequence, SequenceId};
use super::{Engine, Load, Loaded};

impl Engine {
    /// Admits waiting sequences in order, until one does not fit. Says what KV they want from elsewhere.
    pub fn admit(&mut self) -> Vec<Load> {
        let mut loads = Vec::new();
        while self.running.len() + self.loading.len() < self.config.max_sequences {
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            if !self.reserve(&mut sequence) {
                // First come, first served: a short prompt does not overtake a long one.
                self.waiting.push_front(sequence);
                break;
            }
            let Some(remote) = sequence.spec.remote.take() else {
                self.count_admission(&mut sequence);
                self.running.push(sequence);
                continue;
            };
            let missing = remote.tokens.min(sequence.prompt_tokens).saturating_sub(sequence.computed);
            sequence.external = if missing < remote.threshold.max(1) { 0 } else { missing };
            let first = sequence.computed / self.config.block_tokens;
            let end = (sequence.computed + sequence.external).div_ceil(self.config.block_tokens);
            self.count_admission(&mut sequence);
            let blocks =
                if sequence.external == 0 { Vec::new() } else { sequence.blocks[first..end].to_vec() };
            let queue = if blocks.is_empty() { &mut self.running } else { &mut self.loading };
            loads.push(Load { sequence: sequence.id, first_token: sequence.computed, blocks });
            queue.push(sequence);
        }
        loads
    }

    /// Gives a sequence blocks for all its tokens, cached ones first. The last token is always computed anew: there is
    /// no next token without it.
    fn reserve(&mut self, sequence: &mut Sequence) -> bool {
        let block_tokens = self.config.block_tokens;
        let tokens = sequence.tokens.len();
        let prefix = if self.config.prefix_caching {
            sequence.name_blocks(tokens, block_tokens);
            self.pool.cached_prefix(&sequence.names[..(tokens - 1) / block_tokens])
        } else {
            Vec::new()
        };
        let fresh = tokens.div_ceil(block_tokens) - prefix.len();
        let Some(blocks) = self.pool.take(&prefix, fresh) else { return false };
        sequence.computed = prefix.len() * block_tokens;
        sequence.published = prefix.len();
        sequence.blocks = blocks;
        true
    }

    fn count_admission(&mut self, sequence: &mut Sequence) {
        if std::mem::replace(&mut sequence.admitted, true) {
            return;
        }
        sequence.cached = sequence.computed;
        self.counts.prefix_queries += sequence.prompt_tokens as u64;
        self.counts.prefix_hits += sequence.cached as u64;
        self.counts.external_queries += (sequence.prompt_tokens - sequence.cached) as u64;
        self.counts.external_hits += sequence.external as u64;
    }

    /// Takes what came of a [`Load`]; the sequence joins the batch. False when it is gone, or what came is not what
    /// its blocks wait for (then it still waits).
    pub fn loaded(&mut self, id: SequenceId, content: Loaded<'_>) -> bool {
        let Some(at) = self.loading.iter().position(|sequence| sequence.id == id) else { return false };
        let block_tokens = self.config.block_tokens;
        let block_bytes = self.slab.block_bytes();
        let sequence = &mut self.loading[at];
        let end = sequence.computed + sequence.external;
        let blocks = &sequence.blocks[sequence.computed / block_tokens..end.div_ceil(block_tokens)];
        match content {
            Loaded::Bytes(bytes) => {
                if bytes.len() != blocks.len() * block_bytes {
                    return false;
                }
                for (block, bytes) in blocks.iter().zip(bytes.chunks_exact(block_bytes)) {
                    self.slab.write_block(*block, bytes);
                }
                sequence.computed = end;
            }
            Loaded::AsTheyAre => sequence.computed = end,
            Loaded::Nothing => sequence.external = 0,
            Loaded::Tokens(tokens) => {
                if !(sequence.computed..=end).contains(&tokens) {
                    return false;
                }
                sequence.external = tokens - sequence.computed;
                sequence.computed = tokens;
            }
            Loaded::ComputeElsewhere => {
                let mut sequence = self.loading.remove(at);
                self.pool.release(&sequence.blocks);
                sequence.start_anew();
                sequence.external = 0;
                self.waiting.push_front(sequence);
                return true;
            }
        }
        let mut sequence = self.loading.remove(at);
        self.publish(&mut sequence);
        self.running.push(sequence);
        true
    }

    /// Lets later prompts find the full blocks that were computed since the last call.
    pub(super) fn publish(&mut self, sequence: &mut Sequence) {
        if !self.config.prefix_caching {
            return;
        }
        let full = sequence.computed / self.config.block_tokens;
        sequence.name_blocks(sequence.computed, self.config.block_tokens);
        for block in sequence.published..full {
            self.pool.publish(sequence.blocks[block], sequence.names[block]);
        }
        sequence.published = full.max(sequence.published);
    }
}
