//! What is moved between processes: blocks of a slab in runs of one length, out of order on both sides.

use std::fmt;
use std::str::FromStr;

use anyhow::Context;
use sluice_engine_sdk::wire::{BlockRef, Element, Extent, HeadOrder, KvLayout, Order, Planes};
use sluice_transfer::layout::ByteCopy;

use crate::copies::shuffled;

/// One block, which lies in one piece: 16 tokens of 16 KiB.
pub const BLOCK_BYTES: u64 = 256 << 10;
const BLOCK_TOKENS: u32 = 16;
/// Of the orders of runs.
const SOURCE_SEED: u64 = 7;
const SINK_SEED: u64 = 8;

/// Blocks of [`BLOCK_BYTES`] in a slab of so many bytes.
pub fn layout(slab_bytes: u64) -> KvLayout {
    KvLayout {
        blocks: (slab_bytes / BLOCK_BYTES) as u32,
        block_tokens: BLOCK_TOKENS,
        layers: 4,
        planes: Planes::KeyValue,
        kv_heads: 8,
        head_dim: 128,
        element: Element::Bf16,
        tp_size: 1,
        order: Order::BlockLayerPlane,
        head_order: HeadOrder::TokensOutermost,
    }
}

/// Bytes in runs; both are multiples of [`BLOCK_BYTES`], and the first is one of the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    /// All of it.
    pub bytes: u64,
    /// Of one run.
    pub run_bytes: u64,
}

impl Sequence {
    /// Its tokens.
    pub fn extent(self) -> Extent {
        let end_token = (self.bytes / BLOCK_BYTES) as u32 * BLOCK_TOKENS;
        Extent { first_token: 0, end_token, position_tokens: BLOCK_TOKENS }
    }

    /// Where its blocks lie at the producer.
    pub fn source(self, generation: u64) -> Vec<BlockRef> {
        self.blocks(SOURCE_SEED, generation)
    }

    /// Where they are to lie at the consumer.
    pub fn sink(self, generation: u64) -> Vec<BlockRef> {
        self.blocks(SINK_SEED, generation)
    }

    /// What is to be where afterwards, run by run.
    pub fn copies(self) -> impl Iterator<Item = ByteCopy> {
        let count = self.bytes / self.run_bytes;
        let runs = shuffled(count, SOURCE_SEED).into_iter().zip(shuffled(count, SINK_SEED));
        let len = self.run_bytes;
        runs.map(move |(from, to)| ByteCopy { source_offset: from * len, sink_offset: to * len, len })
    }

    fn blocks(self, seed: u64, generation: u64) -> Vec<BlockRef> {
        let run_blocks = self.run_bytes / BLOCK_BYTES;
        let runs = shuffled(self.bytes / self.run_bytes, seed).into_iter();
        let indexes = runs.flat_map(|run| run * run_blocks..(run + 1) * run_blocks);
        indexes.map(|index| BlockRef { index: index as u32, generation }).collect()
    }
}

/// As orders name it: bytes and bytes of a run.
impl fmt::Display for Sequence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.bytes, self.run_bytes)
    }
}

impl FromStr for Sequence {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (bytes, run_bytes) = text.split_once(' ').context("bytes and bytes of a run are needed")?;
        Ok(Self { bytes: bytes.parse()?, run_bytes: run_bytes.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_copies_are_the_same_bytes() {
        for run_bytes in [BLOCK_BYTES, 4 * BLOCK_BYTES] {
            let sequence = Sequence { bytes: 64 * BLOCK_BYTES, run_bytes };
            assert_eq!(sequence.to_string().parse::<Sequence>().unwrap(), sequence);
            let (source, sink) = (sequence.source(1), sequence.sink(1));
            let run_blocks = (run_bytes / BLOCK_BYTES) as usize;
            let begins = |blocks: &[BlockRef]| -> Vec<u64> {
                blocks.iter().step_by(run_blocks).map(|block| u64::from(block.index) * BLOCK_BYTES).collect()
            };
            let (from, to): (Vec<_>, Vec<_>) =
                sequence.copies().map(|copy| (copy.source_offset, copy.sink_offset)).unzip();
            assert_eq!((begins(&source), begins(&sink)), (from, to));
            assert_ne!(source, sink);
            let mut indexes: Vec<_> = sink.iter().map(|block| block.index).collect();
            indexes.sort_unstable();
            assert_eq!(indexes, (0..64).collect::<Vec<_>>(), "each block once");
        }
    }

    #[test]
    fn a_block_is_as_long_as_is_said() {
        assert_eq!(layout(8 * BLOCK_BYTES).rank_bytes(), Some(8 * BLOCK_BYTES));
    }
}
