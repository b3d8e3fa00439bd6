//! One engine's KV memory, with real bytes, and who has which block of it.

use sluice_transfer::protocol::{Attempt, BlockRef, Generations, TransferId};

use crate::random::mix;

/// Layers and head shards that every block has room for. A rank of tp `t` has `SHARDS / t` of the shards.
pub const LAYERS: usize = 2;
pub const SHARDS: usize = 4;

/// Blocks of an engine, and slots of its staging ring behind them. So few that a block that is freed is soon reused.
pub const BLOCKS: usize = 9;
pub const SLOTS: usize = 3;

const WORDS_PER_BLOCK: usize = LAYERS * SHARDS;

/// Who has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Nobody,
    /// The engine computes it for a hold, or holds it.
    Hold(TransferId),
    /// A transfer brings it.
    Landing(Attempt),
    /// The engine serves a request from it.
    Request,
}

#[derive(Clone, Debug)]
pub struct Block {
    pub generation: u64,
    pub owner: Owner,
}

#[derive(Clone, Debug)]
pub struct Memory {
    words: Vec<u64>,
    /// What the owner put there and nobody may change.
    expected: Vec<Option<u64>>,
    pub blocks: Vec<Block>,
    /// The last one freed is the first one reused.
    free: Vec<u32>,
    free_slots: Vec<u32>,
}

/// One word: a cell's share of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub block: BlockRef,
    pub layer: usize,
    pub shard: usize,
}

impl Place {
    fn at(self) -> usize {
        self.block.index as usize * WORDS_PER_BLOCK + self.layer * SHARDS + self.shard
    }
}

impl Memory {
    /// Memory with whatever was there before.
    pub fn new(noise: u64) -> Self {
        let all = BLOCKS + SLOTS;
        let words = (0..all * WORDS_PER_BLOCK).map(|at| mix(noise ^ at as u64)).collect();
        Self {
            words,
            expected: vec![None; all * WORDS_PER_BLOCK],
            blocks: vec![Block { generation: 0, owner: Owner::Nobody }; all],
            free: (0..BLOCKS as u32).collect(),
            free_slots: (BLOCKS as u32..all as u32).collect(),
        }
    }

    fn take_from(&mut self, slots: bool, count: usize, owner: Owner) -> Option<Vec<BlockRef>> {
        let list = if slots { &mut self.free_slots } else { &mut self.free };
        let rest = list.len().checked_sub(count)?;
        let taken = list.split_off(rest);
        let blocks = taken.into_iter().map(|index| {
            let block = &mut self.blocks[index as usize];
            block.owner = owner;
            BlockRef { index, generation: block.generation }
        });
        Some(blocks.collect())
    }

    pub fn take(&mut self, count: usize, owner: Owner) -> Option<Vec<BlockRef>> {
        self.take_from(false, count, owner)
    }

    pub fn take_slots(&mut self, count: usize, owner: Owner) -> Option<Vec<BlockRef>> {
        self.take_from(true, count, owner)
    }

    /// Gives a block back under a new generation; `false` if it was not out.
    pub fn give_back(&mut self, block: BlockRef) -> bool {
        let own = &mut self.blocks[block.index as usize];
        if own.generation != block.generation || own.owner == Owner::Nobody {
            return false;
        }
        own.generation += 1;
        own.owner = Owner::Nobody;
        let first = block.index as usize * WORDS_PER_BLOCK;
        self.expected[first..first + WORDS_PER_BLOCK].fill(None);
        if (block.index as usize) < BLOCKS {
            self.free.push(block.index);
        } else {
            self.free_slots.push(block.index);
        }
        true
    }

    pub fn give_back_all(&mut self, blocks: &[BlockRef]) {
        for block in blocks {
            self.give_back(*block);
        }
    }

    pub fn owner(&self, block: BlockRef) -> Owner {
        if self.is_current(block) { self.blocks[block.index as usize].owner } else { Owner::Nobody }
    }

    pub fn set_owner(&mut self, block: BlockRef, owner: Owner) {
        self.blocks[block.index as usize].owner = owner;
    }

    pub fn read(&self, place: Place) -> u64 {
        self.words[place.at()]
    }

    /// What hardware does: no look at generations or owners.
    pub fn land(&mut self, place: Place, word: u64) {
        self.words[place.at()] = word;
    }

    /// The owner writes, and means it to stay.
    pub fn write(&mut self, place: Place, word: u64) {
        self.words[place.at()] = word;
        self.expected[place.at()] = Some(word);
    }

    /// The owner takes what is there as its own.
    pub fn keep(&mut self, block: BlockRef) {
        let first = block.index as usize * WORDS_PER_BLOCK;
        for at in first..first + WORDS_PER_BLOCK {
            self.expected[at] = Some(self.words[at]);
        }
    }

    /// The first block in which somebody's bytes are not what they were.
    pub fn spoilt(&self) -> Option<usize> {
        let at =
            self.words.iter().zip(&self.expected).position(|(word, meant)| meant.is_some_and(|m| m != *word));
        at.map(|at| at / WORDS_PER_BLOCK)
    }

    /// Blocks that are with a transfer or a hold.
    pub fn out(&self) -> impl Iterator<Item = (usize, Owner)> {
        let away = |owner: Owner| matches!(owner, Owner::Hold(_) | Owner::Landing(_));
        self.blocks.iter().enumerate().filter(move |(_, b)| away(b.owner)).map(|(at, b)| (at, b.owner))
    }
}

impl Generations for Memory {
    fn is_current(&self, block: BlockRef) -> bool {
        self.blocks[block.index as usize].generation == block.generation
    }
}
