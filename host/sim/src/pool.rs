//! Who has which block: reference counts, the free list, and the prefix cache on top of both.

use std::collections::HashMap;

use crate::free_list::FreeList;
use crate::model::mix;
use crate::tokens::Token;

/// A block's number in the slab. Block 0 is never given out, as in vLLM.
pub type BlockId = u32;
/// The name of a full block: a hash over its tokens and the name of the block before it.
pub type BlockHash = u64;

/// Blocks by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockCounts {
    /// All that can be given out.
    pub total: usize,
    /// Referenced by nobody; some of them still cache a prefix.
    pub free: usize,
    /// Referenced by a sequence or a hold.
    pub used: usize,
    /// Named in the prefix cache, used or free.
    pub cached: usize,
}

/// Reference counts, free list and prefix cache of one slab.
#[derive(Debug)]
pub struct BlockPool {
    references: Vec<u32>,
    generations: Vec<u64>,
    name: Vec<Option<BlockHash>>,
    cached: HashMap<BlockHash, BlockId>,
    free: FreeList,
}

/// Names the block that follows `parent` (the salt, for the first) and holds `tokens`.
pub fn block_hash(parent: BlockHash, tokens: &[Token]) -> BlockHash {
    tokens.iter().fold(mix(parent, tokens.len() as u64), |hash, token| mix(hash, u64::from(*token)))
}

impl BlockPool {
    /// A pool over `blocks` blocks, the first of which is set aside.
    pub fn new(blocks: usize) -> Self {
        let mut free = FreeList::new(blocks);
        for block in 1..blocks {
            free.push_back(block as BlockId);
        }
        Self {
            references: vec![0; blocks],
            generations: vec![0; blocks],
            name: vec![None; blocks],
            cached: HashMap::new(),
            free,
        }
    }

    /// Blocks by state.
    pub fn counts(&self) -> BlockCounts {
        let total = self.references.len().saturating_sub(1);
        BlockCounts { total, free: self.free.len(), used: total - self.free.len(), cached: self.cached.len() }
    }

    /// The cached blocks of the longest known prefix of `names`.
    pub fn cached_prefix(&self, names: &[BlockHash]) -> Vec<BlockId> {
        names.iter().map_while(|name| self.cached.get(name).copied()).collect()
    }

    /// Takes cached `prefix` blocks and `fresh` new ones, in this order, or nothing when there are too few.
    pub fn take(&mut self, prefix: &[BlockId], fresh: usize) -> Option<Vec<BlockId>> {
        let revived = prefix.iter().filter(|block| self.free.contains(**block)).count();
        if self.free.len() < revived + fresh {
            return None;
        }
        for block in prefix {
            if self.free.contains(*block) {
                self.free.remove(*block);
            }
            self.references[*block as usize] += 1;
        }
        let fresh = (0..fresh).filter_map(|_| self.take_fresh());
        Some(prefix.iter().copied().chain(fresh.collect::<Vec<_>>()).collect())
    }

    fn take_fresh(&mut self) -> Option<BlockId> {
        let block = self.free.pop_front()?;
        // Its content is about to change: nobody may find it by its old name.
        if let Some(name) = self.name[block as usize].take() {
            self.cached.remove(&name);
        }
        self.references[block as usize] = 1;
        self.generations[block as usize] += 1;
        Some(block)
    }

    /// Which use of a block this is: one more each time its content is about to change hands. A cached block that is
    /// wanted again is still in the same use.
    pub fn generation(&self, block: BlockId) -> Option<u64> {
        self.generations.get(block as usize).copied()
    }

    /// Takes one more reference of each block, all of which somebody has already.
    pub fn retain(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            debug_assert!(
                self.references[*block as usize] > 0,
                "block {block} is free, and its bytes anybody's"
            );
            self.references[*block as usize] += 1;
        }
    }

    /// Gives back one reference of each block. The last of the list is the first to be evicted: the tail of a prompt
    /// is worth less than its head.
    pub fn release(&mut self, blocks: &[BlockId]) {
        for block in blocks.iter().rev() {
            let references = &mut self.references[*block as usize];
            debug_assert!(*references > 0, "block {block} released twice");
            *references = references.saturating_sub(1);
            if *references == 0 && !self.free.contains(*block) {
                self.free.push_back(*block);
            }
        }
    }

    /// Lets a full block be found by its name. The first block of a name keeps it.
    pub fn publish(&mut self, block: BlockId, name: BlockHash) {
        if self.name[block as usize].is_none() && !self.cached.contains_key(&name) {
            self.name[block as usize] = Some(name);
            self.cached.insert(name, block);
        }
    }
}
