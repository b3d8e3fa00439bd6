//! Free blocks in the order in which they are to be taken: least recently used first, each removable in one step.

use crate::pool::BlockId;

const NONE: BlockId = BlockId::MAX;

/// A doubly linked list over block numbers, kept in two arrays. A cached block that is wanted again leaves from the
/// middle, which is why a queue would not do.
#[derive(Debug)]
pub struct FreeList {
    next: Vec<BlockId>,
    previous: Vec<BlockId>,
    listed: Vec<bool>,
    first: BlockId,
    last: BlockId,
    len: usize,
}

impl FreeList {
    /// An empty list for blocks `0..blocks`.
    pub fn new(blocks: usize) -> Self {
        Self {
            next: vec![NONE; blocks],
            previous: vec![NONE; blocks],
            listed: vec![false; blocks],
            first: NONE,
            last: NONE,
            len: 0,
        }
    }

    /// How many blocks are listed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no block is listed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a block is listed.
    pub fn contains(&self, block: BlockId) -> bool {
        self.listed[block as usize]
    }

    /// Appends a block, which must not be listed.
    pub fn push_back(&mut self, block: BlockId) {
        debug_assert!(!self.contains(block), "block {block} is already free");
        let last = self.last;
        self.previous[block as usize] = last;
        self.next[block as usize] = NONE;
        match last {
            NONE => self.first = block,
            last => self.next[last as usize] = block,
        }
        self.last = block;
        self.listed[block as usize] = true;
        self.len += 1;
    }

    /// Takes the block that was listed longest.
    pub fn pop_front(&mut self) -> Option<BlockId> {
        let first = self.first;
        (first != NONE).then(|| {
            self.remove(first);
            first
        })
    }

    /// Takes a block out, which must be listed.
    pub fn remove(&mut self, block: BlockId) {
        debug_assert!(self.contains(block), "block {block} is not free");
        let (previous, next) = (self.previous[block as usize], self.next[block as usize]);
        match previous {
            NONE => self.first = next,
            previous => self.next[previous as usize] = next,
        }
        match next {
            NONE => self.last = previous,
            next => self.previous[next as usize] = previous,
        }
        self.listed[block as usize] = false;
        self.len -= 1;
    }
}
