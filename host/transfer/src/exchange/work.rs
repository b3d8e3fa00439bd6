//! Which bytes some cells of a transfer are. Pure.

use std::ops::Range;
use std::sync::Arc;

use crate::fabric::MAX_POST_COPIES;
use crate::layout::{Blocks, Pair, Part, PartError, Plan, RankLink};
use crate::protocol::{BlockRef, Extent, Rect};

/// One side's blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// In the sequence's order.
    pub blocks: Vec<u32>,
    /// The sequence's token that the first of them begins with.
    pub first_token: u32,
}

/// What one operation moves over one link of ranks.
#[derive(Debug, Clone)]
pub struct Work {
    /// Of the transfer.
    pub extent: Extent,
    /// Between these ranks.
    pub link: RankLink,
    /// From here.
    pub source: Arc<Place>,
    /// To here.
    pub sink: Arc<Place>,
    /// What is left to be planned.
    pub left: Vec<Rect>,
}

impl Place {
    /// Blocks of an engine.
    #[must_use]
    pub fn new(blocks: &[BlockRef], first_token: u32) -> Self {
        Self { blocks: blocks.iter().map(|block| block.index).collect(), first_token }
    }

    /// Which of the blocks hold these tokens.
    pub fn blocks_of(&self, tokens: Range<u32>, block_tokens: u32) -> Range<usize> {
        let at = |token: u32| token.saturating_sub(self.first_token);
        (at(tokens.start) / block_tokens) as usize..at(tokens.end).div_ceil(block_tokens) as usize
    }

    fn blocks(&self) -> Blocks<'_> {
        Blocks { blocks: &self.blocks, first_token: self.first_token }
    }
}

impl Work {
    /// Plans the next part that fits one post: `None` if none is left. What is too long is halved, by positions
    /// first, since that keeps its runs.
    ///
    /// # Errors
    /// If it is no part of the pair, or one cell of it is too long.
    pub fn plan_next(&mut self, pair: &Pair, plan: &mut Plan) -> Result<Option<Rect>, PartError> {
        while let Some(rect) = self.left.pop() {
            let part = Part {
                source: self.source.blocks(),
                sink: self.sink.blocks(),
                tokens: self.extent.tokens(rect),
                layers: u32::from(rect.first_layer)..u32::from(rect.end_layer),
            };
            let fits = match plan.fill(pair, &self.link, &part) {
                Ok(()) => plan.runs() <= MAX_POST_COPIES as u64,
                Err(PartError::TooManyPieces) => false,
                Err(refused) => return Err(refused),
            };
            if fits {
                return Ok(Some(rect));
            }
            let (one, other) = halved(rect).ok_or(PartError::TooManyPieces)?;
            self.left.extend([other, one]);
        }
        Ok(None)
    }
}

fn halved(rect: Rect) -> Option<(Rect, Rect)> {
    let (wide, high) = (rect.end - rect.first, rect.end_layer - rect.first_layer);
    if wide > 1 {
        let middle = rect.first + wide / 2;
        return Some((Rect { end: middle, ..rect }, Rect { first: middle, ..rect }));
    }
    let middle = rect.first_layer + high / 2;
    (high > 1).then_some((Rect { end_layer: middle, ..rect }, Rect { first_layer: middle, ..rect }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Element, Geometry, HeadOrder, KvLayout, Order, Planes};

    /// Heads are split and tokens lie outermost, so that a run is a token: more than one post takes.
    #[test]
    fn long_operations_go_in_parts_that_make_up_the_whole() {
        let layout = |tp_size| KvLayout {
            blocks: 1 << 14,
            block_tokens: 16,
            layers: 9,
            planes: Planes::KeyValue,
            kv_heads: 2,
            head_dim: 1,
            element: Element::Int8,
            tp_size,
            order: Order::LayerPlaneBlock,
            head_order: HeadOrder::TokensOutermost,
        };
        let geometry = |tp_size| Geometry::new(layout(tp_size)).unwrap();
        let pair = Pair::new(geometry(2), geometry(1)).unwrap();
        let blocks = || Arc::new(Place { blocks: (0..1 << 14).collect(), first_token: 0 });
        let extent = Extent { first_token: 0, end_token: 1 << 18, position_tokens: 16 };
        let whole = extent.grid(9).unwrap().whole();
        let (link, left) = (pair.links()[1], vec![whole]);
        let mut work = Work { extent, link, source: blocks(), sink: blocks(), left };
        let (mut plan, mut runs, mut bytes, mut parts) = (Plan::default(), 0, 0, 0);
        while work.plan_next(&pair, &mut plan).unwrap().is_some() {
            assert!((1..=MAX_POST_COPIES as u64).contains(&plan.runs()));
            (runs, bytes, parts) = (runs + plan.runs(), bytes + plan.bytes(), parts + 1);
        }
        assert_eq!((runs, bytes), (18 << 18, 18 << 18));
        assert!(parts > 4, "{parts} parts");
    }

    #[test]
    fn a_part_beyond_its_blocks_is_refused() {
        let layout = KvLayout {
            blocks: 8,
            block_tokens: 4,
            layers: 2,
            planes: Planes::Latent,
            kv_heads: 1,
            head_dim: 8,
            element: Element::Int8,
            tp_size: 1,
            order: Order::BlockLayerPlane,
            head_order: HeadOrder::TokensOutermost,
        };
        let side = Geometry::new(layout).unwrap();
        let pair = Pair::new(side, side).unwrap();
        let extent = Extent { first_token: 0, end_token: 8, position_tokens: 4 };
        let place = |blocks: &[u32]| Arc::new(Place { blocks: blocks.to_vec(), first_token: 0 });
        for (source, sink) in [(vec![0], vec![0, 1]), (vec![0, 1], vec![0, 8])] {
            let left = vec![extent.grid(2).unwrap().whole()];
            let (source, sink) = (place(&source), place(&sink));
            let mut work = Work { extent, link: pair.links()[0], source, sink, left };
            assert!(work.plan_next(&pair, &mut Plan::default()).is_err());
        }
    }
}
