//! The KV memory of an engine: one contiguous slab of blocks, each of `block_tokens` entries.

use std::fmt;

use crate::pool::BlockId;

/// Memory that a slab lies in. It is copied from and to, and never seen as a slice: others may write to it at any time.
/// A slab stays within [`KvMemory::len_bytes`].
pub trait KvMemory: fmt::Debug + Send {
    /// How much there is.
    fn len_bytes(&self) -> usize;
    /// Copies bytes out. What somebody writes at the same time is a mix.
    fn read(&self, offset: usize, into: &mut [u8]);
    /// Copies bytes in.
    fn write(&mut self, offset: usize, from: &[u8]);
}

/// Memory that nobody else reaches.
impl KvMemory for Vec<u8> {
    fn len_bytes(&self) -> usize {
        self.len()
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self[offset..offset + into.len()]);
    }

    fn write(&mut self, offset: usize, from: &[u8]) {
        self[offset..offset + from.len()].copy_from_slice(from);
    }
}

/// Blocks side by side.
#[derive(Debug)]
pub struct Slab {
    memory: Box<dyn KvMemory>,
    blocks: usize,
    block_bytes: usize,
    entry_bytes: usize,
}

impl Slab {
    /// A zeroed slab of its own.
    pub fn new(blocks: usize, block_tokens: usize, entry_bytes: usize) -> Self {
        let block_bytes = block_tokens * entry_bytes;
        Self { memory: Box::new(vec![0; blocks * block_bytes]), blocks, block_bytes, entry_bytes }
    }

    /// A slab in memory that is given; `None` when that is too small.
    pub fn within(
        memory: Box<dyn KvMemory>,
        blocks: usize,
        block_tokens: usize,
        entry_bytes: usize,
    ) -> Option<Self> {
        let block_bytes = block_tokens * entry_bytes;
        let fits = blocks.checked_mul(block_bytes).is_some_and(|needed| needed <= memory.len_bytes());
        fits.then_some(Self { memory, blocks, block_bytes, entry_bytes })
    }

    /// Size of one block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Copies the first bytes of a block out; false when there is no such block.
    pub fn read_block(&self, block: BlockId, into: &mut [u8]) -> bool {
        let is_there = (block as usize) < self.blocks && into.len() <= self.block_bytes;
        if is_there {
            self.memory.read(block as usize * self.block_bytes, into);
        }
        is_there
    }

    /// Copies bytes to the beginning of a block; false when there is no such block.
    pub fn write_block(&mut self, block: BlockId, from: &[u8]) -> bool {
        let is_there = (block as usize) < self.blocks && from.len() <= self.block_bytes;
        if is_there {
            self.memory.write(block as usize * self.block_bytes, from);
        }
        is_there
    }

    /// Copies one entry of a block out.
    pub fn read_entry(&self, block: BlockId, slot: usize, into: &mut [u8]) {
        self.memory.read(self.entry_at(block, slot), &mut into[..self.entry_bytes]);
    }

    /// Writes one entry of a block.
    pub fn write_entry(&mut self, block: BlockId, slot: usize, entry: &[u8]) {
        let at = self.entry_at(block, slot);
        self.memory.write(at, &entry[..self.entry_bytes]);
    }

    fn entry_at(&self, block: BlockId, slot: usize) -> usize {
        block as usize * self.block_bytes + slot * self.entry_bytes
    }
}
