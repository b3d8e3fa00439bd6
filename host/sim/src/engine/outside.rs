//! What the caller sees and has of an engine's blocks, for others who read and write them.

use super::Engine;
use super::sequence::SequenceId;
use crate::pool::BlockId;

/// How far a sequence of the batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Its blocks, in order.
    pub blocks: &'a [BlockId],
    /// Leading tokens whose entries are in them; during a step, with those that it computes.
    pub computed: usize,
}

impl Engine {
    /// How far a sequence is; `None` unless it is in the batch.
    pub fn progress(&self, id: SequenceId) -> Option<Progress<'_>> {
        let sequence = self.running.iter().find(|sequence| sequence.id == id)?;
        Some(Progress { blocks: &sequence.blocks, computed: sequence.computed })
    }

    /// Which use of a block this is: one more each time it is given to somebody for other content.
    pub fn generation(&self, block: BlockId) -> Option<u64> {
        self.pool.generation(block)
    }

    /// Keeps blocks out of other hands, whatever becomes of their sequence, until [`Self::release`]: once more for each
    /// time that they are named. All of them must be in use.
    pub fn retain(&mut self, blocks: &[BlockId]) {
        self.pool.retain(blocks);
    }

    /// Gives back what [`Self::retain`] took, or what came as [`super::Kept`].
    pub fn release(&mut self, blocks: &[BlockId]) {
        self.pool.release(blocks);
    }

    /// The bytes of a block, whoever has it: a remote reader reads memory, not permissions.
    pub fn read_block(&self, block: BlockId) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.slab.block_bytes()];
        self.slab.read_block(block, &mut bytes).then_some(bytes)
    }

    /// Flips a bit of a block, to break things in tests; false when there is no such byte.
    pub fn flip_bit(&mut self, block: BlockId, offset: usize) -> bool {
        let Some(mut bytes) = self.read_block(block) else { return false };
        let Some(byte) = bytes.get_mut(offset) else { return false };
        *byte ^= 1;
        self.slab.write_block(block, &bytes)
    }
}
