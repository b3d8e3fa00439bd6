//! The KV memory of an engine: one contiguous slab of blocks, each of `block_tokens` entries.

use crate::pool::BlockId;

/// Blocks side by side.
#[derive(Debug)]
pub struct Slab {
    bytes: Vec<u8>,
    block_bytes: usize,
    entry_bytes: usize,
}

impl Slab {
    /// A zeroed slab.
    pub fn new(blocks: usize, block_tokens: usize, entry_bytes: usize) -> Self {
        let block_bytes = block_tokens * entry_bytes;
        Self { bytes: vec![0; blocks * block_bytes], block_bytes, entry_bytes }
    }

    /// Size of one block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.bytes.len() / self.block_bytes
    }

    /// A block's bytes, or `None` when there is no such block.
    pub fn block(&self, block: BlockId) -> Option<&[u8]> {
        let start = block as usize * self.block_bytes;
        self.bytes.get(start..start + self.block_bytes)
    }

    /// As [`Self::block`], to write.
    pub fn block_mut(&mut self, block: BlockId) -> Option<&mut [u8]> {
        let start = block as usize * self.block_bytes;
        self.bytes.get_mut(start..start + self.block_bytes)
    }

    /// One entry of a block.
    pub fn entry(&self, block: BlockId, slot: usize) -> &[u8] {
        let start = block as usize * self.block_bytes + slot * self.entry_bytes;
        &self.bytes[start..start + self.entry_bytes]
    }

    /// As [`Self::entry`], to write.
    pub fn entry_mut(&mut self, block: BlockId, slot: usize) -> &mut [u8] {
        let start = block as usize * self.block_bytes + slot * self.entry_bytes;
        &mut self.bytes[start..start + self.entry_bytes]
    }
}
