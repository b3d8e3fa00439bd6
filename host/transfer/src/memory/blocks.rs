//! Whose each block of a slab is. Pure: what may be done with a block, not its bytes.
//!
//! ```text
//!  free --allocate--> owned --expose--> exposed(n writers) --settle each--> owned
//!   ^                   |                  |
//!   +------- free ------+                  +--free--> quarantined(n) --settle each--> free
//! ```
//!
//! A block that a remote writer may still write into is never handed out again, however long ago it was given up:
//! only the end of each writer frees it. Generations rise when a block is handed out.

use super::block::{BlockError, BlockState, Freed};
use crate::protocol::BlockRef;

/// The most blocks of a table: 4 Mi blocks of 16 tokens are 64 Mi tokens, beyond any engine, in 100 MB.
pub const MAX_BLOCKS: u32 = 1 << 22;

#[derive(Debug, Clone, Copy)]
struct Block {
    generation: u64,
    state: BlockState,
}

/// All blocks of one slab. Every operation on a block is O(1).
#[derive(Debug)]
pub struct BlockTable {
    blocks: Vec<Block>,
    /// The next to hand out is the last. Low positions first, so that fresh sequences get neighbours.
    free: Vec<u32>,
    quarantined: u32,
}

impl BlockTable {
    /// A table of free blocks.
    pub fn new(count: u32) -> Result<Self, BlockError> {
        if count > MAX_BLOCKS {
            return Err(BlockError::TooMany { count });
        }
        let block = Block { generation: 0, state: BlockState::Free };
        Ok(Self { blocks: vec![block; count as usize], free: (0..count).rev().collect(), quarantined: 0 })
    }

    /// Hands out `asked` blocks at the end of `into`, all or none.
    pub fn allocate(&mut self, asked: u32, into: &mut Vec<BlockRef>) -> Result<(), BlockError> {
        let Some(first) = self.free.len().checked_sub(asked as usize) else {
            let (free, quarantined, count) = (self.free(), self.quarantined, self.count());
            return Err(BlockError::Exhausted { asked, free, quarantined, count });
        };
        for index in self.free.drain(first..).rev() {
            if let Some(block) = self.blocks.get_mut(index as usize) {
                *block = Block { generation: block.generation + 1, state: BlockState::Owned };
                into.push(BlockRef { index, generation: block.generation });
            }
        }
        Ok(())
    }

    /// One more remote writer may write into it from now on.
    pub fn expose(&mut self, block: BlockRef) -> Result<(), BlockError> {
        let found = self.find(block)?;
        let writers = match found.state {
            BlockState::Owned => 1,
            BlockState::Exposed { writers } if writers < u32::MAX => writers + 1,
            state => return Err(wrong(block, "exposed", state)),
        };
        found.state = BlockState::Exposed { writers };
        Ok(())
    }

    /// One of its writers has ended: nothing of it can land any more. A deadline is no such end.
    pub fn settle(&mut self, block: BlockRef) -> Result<BlockState, BlockError> {
        let found = self.find(block)?;
        found.state = match found.state {
            BlockState::Exposed { writers: 1 } => BlockState::Owned,
            BlockState::Exposed { writers } => BlockState::Exposed { writers: writers - 1 },
            BlockState::Quarantined { writers: 1 } => BlockState::Free,
            BlockState::Quarantined { writers } => BlockState::Quarantined { writers: writers - 1 },
            state => return Err(wrong(block, "settled", state)),
        };
        let state = found.state;
        if state == BlockState::Free {
            self.quarantined -= 1;
            self.free.push(block.index);
        }
        Ok(state)
    }

    /// Its owner gives it up.
    pub fn free_block(&mut self, block: BlockRef) -> Result<Freed, BlockError> {
        let found = self.find(block)?;
        match found.state {
            BlockState::Owned => {
                found.state = BlockState::Free;
                self.free.push(block.index);
                Ok(Freed::Free)
            }
            BlockState::Exposed { writers } => {
                found.state = BlockState::Quarantined { writers };
                self.quarantined += 1;
                Ok(Freed::Quarantined)
            }
            BlockState::Free | BlockState::Quarantined { .. } => {
                Err(BlockError::FreedTwice { index: block.index, generation: block.generation })
            }
        }
    }

    /// What this use of the block is now; an error if it was handed out again. A block whose owner gave it up is
    /// no longer what was written, though its generation has not risen yet: ask for [`BlockTable::is_held`].
    pub fn state(&self, block: BlockRef) -> Result<BlockState, BlockError> {
        let count = self.count();
        let found =
            self.blocks.get(block.index as usize).ok_or(BlockError::Unknown { index: block.index, count })?;
        current(block, found.generation)?;
        Ok(found.state)
    }

    /// Whether this use goes on: what a holder says of blocks after they were read.
    pub fn is_held(&self, block: BlockRef) -> bool {
        matches!(self.state(block), Ok(BlockState::Owned | BlockState::Exposed { .. }))
    }

    /// Blocks that can be handed out.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Blocks that wait for the end of a writer.
    pub fn quarantined(&self) -> u32 {
        self.quarantined
    }

    /// All blocks.
    pub fn count(&self) -> u32 {
        self.blocks.len() as u32
    }

    fn find(&mut self, block: BlockRef) -> Result<&mut Block, BlockError> {
        let count = self.count();
        let found = self
            .blocks
            .get_mut(block.index as usize)
            .ok_or(BlockError::Unknown { index: block.index, count })?;
        current(block, found.generation)?;
        Ok(found)
    }
}

fn current(block: BlockRef, now: u64) -> Result<(), BlockError> {
    if block.generation == now && now != 0 {
        return Ok(());
    }
    Err(BlockError::Stale { index: block.index, asked: block.generation, now })
}

fn wrong(block: BlockRef, action: &'static str, state: BlockState) -> BlockError {
    BlockError::WrongState { index: block.index, action, state }
}
