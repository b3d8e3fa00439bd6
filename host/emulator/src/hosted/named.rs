//! Which blocks are named to the host. Pure.

use std::collections::BTreeMap;

use sluice_engine_sdk::wire::BlockRef;
use sluice_sim::pool::BlockId;

/// Blocks that are not this engine's to reuse, each as often as it was named: prompts share their heads, so one block
/// is in several holds. Whose naming ends does not matter, how many are left does.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// To the host that is attached.
    now: BTreeMap<BlockRef, u32>,
    /// To a host that is not, and that may still copy.
    stranded: Vec<BlockId>,
}

impl Named {
    /// Names blocks once more; they are to be retained.
    pub fn name(&mut self, blocks: &[BlockRef]) -> Vec<BlockId> {
        for block in blocks {
            *self.now.entry(*block).or_default() += 1;
        }
        blocks.iter().map(|block| block.index).collect()
    }

    /// One naming of each block is over; they are to be released. What is not named is no matter of the host's.
    pub fn given_back(&mut self, blocks: &[BlockRef]) -> Vec<BlockId> {
        let is_over = |block: &&BlockRef| {
            let Some(count) = self.now.get_mut(block) else { return false };
            *count -= 1;
            if *count == 0 {
                self.now.remove(block);
            }
            true
        };
        blocks.iter().filter(is_over).map(|block| block.index).collect()
    }

    /// The host is gone, but perhaps not its copies.
    pub fn strand(&mut self) {
        for (block, count) in std::mem::take(&mut self.now) {
            self.stranded.extend((0..count).map(|_| block.index));
        }
    }

    /// A host that is gone copies no more; its blocks are to be released.
    pub fn reclaim(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.stranded)
    }

    /// Whether all of these are named, and so in the very use that they were named in.
    pub fn holds_all(&self, blocks: &[BlockRef]) -> bool {
        blocks.iter().all(|block| self.now.contains_key(block))
    }

    /// Namings that are not over, those to a former host included.
    pub fn len(&self) -> usize {
        self.now.values().map(|count| *count as usize).sum::<usize>() + self.stranded.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(index: u32, generation: u64) -> BlockRef {
        BlockRef { index, generation }
    }

    #[test]
    fn a_block_is_released_as_often_as_it_was_named() {
        let mut named = Named::default();
        assert_eq!(named.name(&[block(1, 1), block(2, 1)]), [1, 2]);
        assert_eq!(named.name(&[block(1, 1), block(3, 5)]), [1, 3]);
        assert_eq!(named.len(), 4);
        assert_eq!(named.given_back(&[block(1, 1), block(2, 1)]), [1, 2]);
        assert!(named.holds_all(&[block(1, 1), block(3, 5)]) && !named.holds_all(&[block(2, 1)]));
        // Another use of a block is another block, and nothing is given back twice.
        assert_eq!(named.given_back(&[block(3, 4), block(2, 1), block(1, 1)]), [1]);
        assert_eq!(named.given_back(&[block(1, 1)]), [0_u32; 0]);
    }

    #[test]
    fn a_host_that_is_gone_frees_nothing_by_what_a_later_one_says() {
        let mut named = Named::default();
        named.name(&[block(1, 1)]);
        named.name(&[block(1, 1)]);
        named.strand();
        assert!(!named.holds_all(&[block(1, 1)]));
        assert_eq!(named.given_back(&[block(1, 1)]), [0_u32; 0]);
        assert_eq!(named.len(), 2);
        assert_eq!(named.reclaim(), [1, 1]);
        assert_eq!((named.reclaim().len(), named.len()), (0, 0));
    }
}
