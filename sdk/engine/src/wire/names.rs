//! Who and what a message is about.

use std::fmt;
use std::ops::Range;

use sha2::{Digest, Sha256};

use super::bytes::{codes, members};
use super::{MAX_BLOCKS, MAX_LAYERS};

/// One hand-over of KV blocks, as the router named it. An id is used for one prefill (or one turn) and never again:
/// a repeated prefill has a new id, a repeated transfer of the same blocks a new [`Epoch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u128);

/// Which attempt at a transfer. Only the consumer raises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

/// A transfer at one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt {
    /// Which transfer.
    pub id: TransferId,
    /// Which attempt at it.
    pub epoch: Epoch,
}

/// An engine, whatever its process. Its tensor-parallel ranks share it. See [`EngineId::of_name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u128);

/// A tensor-parallel rank of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u16);

/// A KV block in one use of it: the same index in a later use has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRef {
    /// Which block of the slab.
    pub index: u32,
    /// Which use of it.
    pub generation: u64,
}

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// The consumer's side reads (pull).
    Read,
    /// The producer's side writes (push).
    Write,
}

/// Which way KV goes: a label for metrics, and from decode to prefill it comes only as far as proofs go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From prefill to decode, after (or during) a prefill.
    PrefillToDecode,
    /// From decode to prefill, to be used again in the next turn.
    DecodeToPrefill,
}

/// The cells of a transfer: one for each block position and layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grid {
    /// Block positions.
    pub positions: u32,
    /// Layers.
    pub layers: u16,
}

/// A range of positions in a range of layers; both half open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rect {
    /// First position.
    pub first: u32,
    /// Position after the last.
    pub end: u32,
    /// First layer.
    pub first_layer: u16,
    /// Layer after the last.
    pub end_layer: u16,
}

/// The tokens of a transfer, counted in their sequence and cut into positions. Its holder names it; a consumer that
/// names another gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first token.
    pub first_token: u32,
    /// The token after the last.
    pub end_token: u32,
    /// Tokens of one position of the grid; the last may be shorter. Progress is told in these.
    pub position_tokens: u32,
}

/// Tokens of a sequence; half open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// The first.
    pub first: u32,
    /// The one after the last.
    pub end: u32,
}

impl EngineId {
    /// The id of the engine of this name: the name is the engine's for people, the id for messages.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        let digest = Sha256::digest(name.as_bytes());
        let mut head = [0; 16];
        head.copy_from_slice(&digest[..16]);
        Self(u128::from_be_bytes(head))
    }
}

impl Grid {
    /// All of it.
    #[must_use]
    pub fn whole(self) -> Rect {
        Rect { first: 0, end: self.positions, first_layer: 0, end_layer: self.layers }
    }

    /// Whether it is not empty and within bounds.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.positions > 0
            && self.positions as usize <= MAX_BLOCKS
            && self.layers > 0
            && self.layers <= MAX_LAYERS
    }

    /// Whether `part` is some of its positions, in all layers.
    #[must_use]
    pub fn has_positions(self, part: Rect) -> bool {
        part.fits(self) && (part.first_layer, part.end_layer) == (0, self.layers)
    }
}

impl Rect {
    /// Cells in it.
    #[must_use]
    pub fn cells(self) -> u64 {
        u64::from(self.end.saturating_sub(self.first))
            * u64::from(self.end_layer.saturating_sub(self.first_layer))
    }

    /// Whether there is no cell in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.cells() == 0
    }

    /// Whether it is not empty and lies in `grid`.
    #[must_use]
    pub fn fits(self, grid: Grid) -> bool {
        self.is_within(grid.whole())
    }

    /// Whether it is not empty and `other` has all of it.
    #[must_use]
    pub fn is_within(self, other: Self) -> bool {
        self.intersection(other) == Some(self)
    }

    /// What both have, if anything.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        let both = Self {
            first: self.first.max(other.first),
            end: self.end.min(other.end),
            first_layer: self.first_layer.max(other.first_layer),
            end_layer: self.end_layer.min(other.end_layer),
        };
        (!both.is_empty()).then_some(both)
    }
}

impl Extent {
    /// Its cells, with so many layers; `None` if it is empty or has more than a grid may.
    #[must_use]
    pub fn grid(&self, layers: u32) -> Option<Grid> {
        let tokens = self.end_token.checked_sub(self.first_token)?;
        if self.position_tokens == 0 {
            return None;
        }
        let positions = tokens.div_ceil(self.position_tokens);
        let grid = Grid { positions, layers: u16::try_from(layers).ok()? };
        grid.is_valid().then_some(grid)
    }

    /// The tokens of some cells, those of a rectangle that lies in its grid.
    #[must_use]
    pub fn tokens(&self, rect: Rect) -> Range<u32> {
        let at = |position: u32| {
            let token = u64::from(self.first_token) + u64::from(position) * u64::from(self.position_tokens);
            u32::try_from(token).map_or(self.end_token, |token| token.min(self.end_token))
        };
        at(rect.first)..at(rect.end)
    }

    /// The cells that hold any of `tokens`, in all layers; `None` if there are none.
    #[must_use]
    pub fn cells(&self, tokens: Tokens, layers: u32) -> Option<Rect> {
        let grid = self.grid(layers)?;
        let first = tokens.first.max(self.first_token) - self.first_token;
        let end = tokens.end.min(self.end_token).checked_sub(self.first_token)?;
        let rect = Rect {
            first: first / self.position_tokens,
            end: end.div_ceil(self.position_tokens),
            ..grid.whole()
        };
        (first < end && rect.fits(grid)).then_some(rect)
    }

    /// Whether blocks of so many tokens, the first of which begins with `first_token`, hold all of `tokens`.
    #[must_use]
    pub fn are_held_by(tokens: Tokens, first_token: u32, blocks: usize, block_tokens: u32) -> bool {
        let end = u64::from(first_token) + blocks as u64 * u64::from(block_tokens);
        first_token <= tokens.first && u64::from(tokens.end) <= end
    }
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}/{}", self.id.0, self.epoch.0)
    }
}

members!(TransferId { 0 });
members!(Epoch { 0 });
members!(Attempt { id, epoch });
members!(EngineId { 0 });
members!(Rank { 0 });
members!(BlockRef { index, generation });
members!(Grid { positions, layers });
members!(Rect { first, end, first_layer, end_layer });
members!(Extent { first_token, end_token, position_tokens });
members!(Tokens { first, end });
codes!(Verb, "verb": 1 => Verb::Read, 2 => Verb::Write);
codes!(Direction, "direction": 1 => Direction::PrefillToDecode, 2 => Direction::DecodeToPrefill);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_id() {
        assert_eq!(EngineId::of_name("decode-0"), EngineId::of_name("decode-0"));
        assert_ne!(EngineId::of_name("decode-0"), EngineId::of_name("decode-1"));
        assert_eq!(EngineId::of_name("").to_string(), "e3b0c44298fc1c149afbf4c8996fb924");
    }

    #[test]
    fn cells_are_tokens_and_tokens_cells() {
        let extent = Extent { first_token: 5, end_token: 38, position_tokens: 16 };
        let rect = |first, end| Rect { first, end, first_layer: 0, end_layer: 28 };
        assert_eq!(extent.grid(28), Some(Grid { positions: 3, layers: 28 }));
        for (cells, tokens) in [(rect(0, 1), 5..21), (rect(1, 3), 21..38), (rect(2, 3), 37..38)] {
            assert_eq!(extent.tokens(cells), tokens);
        }
        for (first, end, cells) in [
            (0, 99, Some(rect(0, 3))),
            (5, 21, Some(rect(0, 1))),
            (20, 22, Some(rect(0, 2))),
            (37, 38, Some(rect(2, 3))),
            (38, 99, None),
            (0, 5, None),
            (9, 9, None),
        ] {
            assert_eq!(extent.cells(Tokens { first, end }, 28), cells, "{first} {end}");
        }
        for (first, blocks, block_tokens, held) in
            [(0, 3, 16, true), (0, 2, 16, false), (5, 33, 1, true), (6, 99, 16, false)]
        {
            let tokens = Tokens { first: 5, end: 38 };
            assert_eq!(Extent::are_held_by(tokens, first, blocks, block_tokens), held, "{first} {blocks}");
        }
    }

    #[test]
    fn a_part_of_a_grid_is_some_of_its_positions_in_all_layers() {
        let grid = Grid { positions: 4, layers: 3 };
        let whole = grid.whole();
        for (part, fits, in_all_layers) in [
            (whole, true, true),
            (Rect { first: 3, ..whole }, true, true),
            (Rect { first: 1, end: 2, ..whole }, true, true),
            (Rect { first_layer: 1, ..whole }, true, false),
            (Rect { end_layer: 2, ..whole }, true, false),
            (Rect { first: 4, ..whole }, false, false),
            (Rect { first: 3, end: 2, ..whole }, false, false),
            (Rect { end: 5, ..whole }, false, false),
            (Rect { end_layer: 4, ..whole }, false, false),
        ] {
            assert_eq!((part.fits(grid), grid.has_positions(part)), (fits, in_all_layers), "{part:?}");
        }
        let tail = Rect { first: 2, ..whole };
        assert!(tail.is_within(whole) && tail.is_within(tail) && !whole.is_within(tail));
    }

    #[test]
    fn what_makes_no_grid_is_none() {
        let extent = Extent { first_token: 0, end_token: 64, position_tokens: 16 };
        for (extent, layers) in [
            (Extent { end_token: 0, ..extent }, 1),
            (Extent { first_token: 65, ..extent }, 1),
            (Extent { position_tokens: 0, ..extent }, 1),
            (Extent { end_token: u32::MAX, ..extent }, 1),
            (extent, 0),
            (extent, 70_000),
        ] {
            assert_eq!(extent.grid(layers), None, "{extent:?} {layers}");
        }
    }
}
