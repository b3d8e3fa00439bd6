//! The byte copies of one part of a transfer, between one rank of each side.
//!
//! What repeats from layer to layer is written down once and repeated when read, so a plan of 16k tokens is as
//! many pieces as there are runs of blocks, not times layers.

use std::ops::Range;

use super::ByteCopy;
use super::geometry::Geometry;
use super::pair::{Pair, RankLink};
use super::pieces::{Spread, Stride};

/// The most pieces a plan holds before they are repeated over layers (100 MB of them): a part that needs more is
/// planned by fewer tokens at a time.
pub const MAX_PIECES: usize = 1 << 22;

/// A sequence's blocks at one side.
#[derive(Debug, Clone, Copy)]
pub struct Blocks<'a> {
    /// Positions in the slab, in the sequence's order.
    pub blocks: &'a [u32],
    /// The sequence's token that the first of them begins with.
    pub first_token: u32,
}

/// What to move: these tokens of a sequence, in these layers.
#[derive(Debug, Clone)]
pub struct Part<'a> {
    /// Where they lie.
    pub source: Blocks<'a>,
    /// Where they go.
    pub sink: Blocks<'a>,
    /// Of the sequence. Neither end need be a block's.
    pub tokens: Range<u32>,
    /// Of the model.
    pub layers: Range<u32>,
}

/// Why a part cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// Layers that the model does not have.
    #[error("layers {}..{} of a model with {count}", asked.start, asked.end)]
    Layers {
        /// Asked for.
        asked: Range<u32>,
        /// There are.
        count: u32,
    },
    /// Tokens that a side's blocks do not hold.
    #[error("tokens {}..{} at the {side}, whose blocks hold {}..{}", asked.start, asked.end, held.start, held.end)]
    Tokens {
        /// `source` or `sink`.
        side: &'static str,
        /// Asked for.
        asked: Range<u32>,
        /// What its blocks hold.
        held: Range<u64>,
    },
    /// A block that a side's slab does not have.
    #[error("block {block} at the {side}, whose slab has {count}")]
    Block {
        /// `source` or `sink`.
        side: &'static str,
        /// Asked for.
        block: u32,
        /// There are.
        count: u32,
    },
    /// A link of another pair.
    #[error("rank {source_rank} to rank {sink_rank} is no link of this pair")]
    Link {
        /// Asked for.
        source_rank: u32,
        /// Asked for.
        sink_rank: u32,
    },
    /// More pieces than [`MAX_PIECES`].
    #[error("more than {MAX_PIECES} pieces; plan fewer tokens at a time")]
    TooManyPieces,
}

/// Byte copies of one part over one link. Made once, used again: it keeps its memory.
#[derive(Debug)]
pub struct Plan {
    pieces: Vec<ByteCopy>,
    repeats: [Stride; 2],
    runs_before: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self { pieces: Vec::new(), repeats: [Stride::ONCE; 2], runs_before: 0 }
    }
}

impl Plan {
    /// Plans a part over one of the pair's links, in place of what was planned before.
    pub fn fill(&mut self, pair: &Pair, link: &RankLink, part: &Part<'_>) -> Result<(), PartError> {
        *self = Self { pieces: std::mem::take(&mut self.pieces), ..Self::default() };
        self.pieces.clear();
        check(pair, link, part)?;
        if part.layers.is_empty() || part.tokens.is_empty() {
            return Ok(());
        }
        let (source, sink) = (&pair.source.strides, &pair.sink.strides);
        let layers = u64::from(part.layers.end - part.layers.start);
        let layer = Stride { count: layers, source: source.layer, sink: sink.layer };
        let planes = pair.source.layout().planes.count();
        let plane = Stride { count: planes, source: source.plane, sink: sink.plane };
        // A dimension is laid inside the blocks only where whole blocks become longer runs by it.
        let alike = source.chunk == sink.chunk && source.token == sink.token && source.head == sink.head;
        let plane_inside = alike && source.plane == source.chunk && sink.plane == source.chunk;
        let layer_inside = plane_inside && source.layer < source.block && sink.layer < sink.block;
        let inside =
            |inside: bool, stride| if inside { (stride, Stride::ONCE) } else { (Stride::ONCE, stride) };
        let ((plane, plane_outside), (layer, layer_outside)) =
            (inside(plane_inside, plane), inside(layer_inside, layer));
        self.repeats = [layer_outside, plane_outside];

        let first_layer = u64::from(part.layers.start);
        let source_base = first_layer * source.layer + u64::from(link.source_head) * source.head;
        let sink_base = first_layer * sink.layer + u64::from(link.sink_head) * sink.head;
        let heads = Stride { count: link.heads.into(), source: source.head, sink: sink.head };
        for segment in segments(pair, part) {
            let tokens = Stride { count: segment.tokens, source: source.token, sink: sink.token };
            self.runs_before += Spread::new(source.head_bytes, [tokens, heads]).runs() * layers * planes;
            let spread = Spread::new(source.head_bytes, [tokens, heads, plane, layer]);
            if self.pieces.len() as u64 + spread.runs() > MAX_PIECES as u64 {
                return Err(PartError::TooManyPieces);
            }
            spread.put(source_base + segment.source, sink_base + segment.sink, &mut self.pieces);
        }
        Ok(())
    }

    /// All copies. No two of them touch the same byte of the sink.
    pub fn copies(&self) -> impl Iterator<Item = ByteCopy> + '_ {
        let [layer, plane] = self.repeats;
        let places = (0..layer.count).flat_map(move |l| (0..plane.count).map(move |p| (l, p)));
        places.flat_map(move |(l, p)| {
            let (source, sink) = (l * layer.source + p * plane.source, l * layer.sink + p * plane.sink);
            self.pieces.iter().map(move |piece| ByteCopy {
                source_offset: piece.source_offset + source,
                sink_offset: piece.sink_offset + sink,
                len: piece.len,
            })
        })
    }

    /// How many copies there are.
    pub fn runs(&self) -> u64 {
        self.pieces.len() as u64 * self.repeated()
    }

    /// How many there would be if neighbours were not joined: at least one for each block, layer and plane.
    pub fn runs_before(&self) -> u64 {
        self.runs_before
    }

    /// Bytes of all copies together.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum::<u64>() * self.repeated()
    }

    fn repeated(&self) -> u64 {
        self.repeats.iter().map(|stride| stride.count).product()
    }
}

/// Tokens that lie in one block at either side; offsets are of the first one, in layer 0, plane 0, head 0.
struct Segment {
    source: u64,
    sink: u64,
    tokens: u64,
}

fn segments<'a>(pair: &'a Pair, part: &'a Part<'a>) -> impl Iterator<Item = Segment> + 'a {
    let mut at = part.tokens.start;
    std::iter::from_fn(move || {
        let left = part.tokens.end.checked_sub(at).filter(|left| *left > 0)?;
        let (source, source_left) = place(&pair.source, &part.source, at)?;
        let (sink, sink_left) = place(&pair.sink, &part.sink, at)?;
        let tokens = left.min(source_left).min(sink_left);
        at += tokens;
        Some(Segment { source, sink, tokens: tokens.into() })
    })
}

/// Where a token is, and how many are left in its block, it included.
fn place(geometry: &Geometry, blocks: &Blocks<'_>, token: u32) -> Option<(u64, u32)> {
    let block_tokens = geometry.layout().block_tokens;
    let from_first = token - blocks.first_token;
    let (index, within) = (from_first / block_tokens, from_first % block_tokens);
    let block = *blocks.blocks.get(index as usize)?;
    let strides = &geometry.strides;
    let offset = u64::from(block) * strides.block + u64::from(within) * strides.token;
    Some((offset, block_tokens - within))
}

fn check(pair: &Pair, link: &RankLink, part: &Part<'_>) -> Result<(), PartError> {
    if !pair.links().contains(link) {
        return Err(PartError::Link { source_rank: link.source_rank, sink_rank: link.sink_rank });
    }
    let count = pair.source.layout().layers;
    if part.layers.start > part.layers.end || part.layers.end > count {
        return Err(PartError::Layers { asked: part.layers.clone(), count });
    }
    let sides = [("source", &pair.source, &part.source), ("sink", &pair.sink, &part.sink)];
    sides
        .into_iter()
        .try_for_each(|(side, geometry, blocks)| check_side(side, geometry, blocks, &part.tokens))
}

fn check_side(
    side: &'static str,
    geometry: &Geometry,
    blocks: &Blocks<'_>,
    tokens: &Range<u32>,
) -> Result<(), PartError> {
    let layout = geometry.layout();
    let first = u64::from(blocks.first_token);
    let held = first..first + blocks.blocks.len() as u64 * u64::from(layout.block_tokens);
    let asked = u64::from(tokens.start)..u64::from(tokens.end);
    if asked.start > asked.end || asked.start < held.start || asked.end > held.end {
        return Err(PartError::Tokens { side, asked: tokens.clone(), held });
    }
    match blocks.blocks.iter().find(|block| **block >= layout.blocks) {
        Some(&block) => Err(PartError::Block { side, block, count: layout.blocks }),
        None => Ok(()),
    }
}
