//! Which part of a transfer: blocks by layers.
//!
//! A transfer is a grid of cells, one for each block position and layer. What is ready, posted, in place or told is a
//! [`Region`] of it: disjoint rectangles, so that a cell counts once however often it is reported.

use sluice_engine_sdk::wire::Rect;

use super::limits::MAX_RECTS;

/// Parts of a rectangle, and two that become one.
trait Cut: Sized {
    fn minus(self, other: Self, out: &mut Vec<Self>);
    fn joined(self, other: Self) -> Option<Self>;
}

impl Cut for Rect {
    /// What this has and `other` has not: the layers below, those above, and what is left and right in between.
    fn minus(self, other: Self, out: &mut Vec<Self>) {
        let Some(cut) = self.intersection(other) else {
            out.push(self);
            return;
        };
        let parts = [
            Self { end_layer: cut.first_layer, ..self },
            Self { first_layer: cut.end_layer, ..self },
            Self { end: cut.first, first_layer: cut.first_layer, end_layer: cut.end_layer, ..self },
            Self { first: cut.end, first_layer: cut.first_layer, end_layer: cut.end_layer, ..self },
        ];
        out.extend(parts.into_iter().filter(|part| part.cells() > 0));
    }

    /// The rectangle that both make together, if they make one.
    fn joined(self, other: Self) -> Option<Self> {
        let same_layers = (self.first_layer, self.end_layer) == (other.first_layer, other.end_layer);
        if same_layers && (self.end == other.first || other.end == self.first) {
            return Some(Self { first: self.first.min(other.first), end: self.end.max(other.end), ..self });
        }
        let same_positions = (self.first, self.end) == (other.first, other.end);
        (same_positions && (self.end_layer == other.first_layer || other.end_layer == self.first_layer)).then(
            || Self {
                first_layer: self.first_layer.min(other.first_layer),
                end_layer: self.end_layer.max(other.end_layer),
                ..self
            },
        )
    }
}

/// Cells, as disjoint rectangles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    rects: Vec<Rect>,
}

/// A region would be in more than [`MAX_RECTS`] pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a region of more than {MAX_RECTS} pieces: report progress in larger ranges")]
pub struct TooFragmented;

impl Region {
    /// Its rectangles; no two share a cell.
    #[must_use]
    pub fn rects(&self) -> &[Rect] {
        &self.rects
    }

    /// Cells in it.
    #[must_use]
    pub fn cells(&self) -> u64 {
        self.rects.iter().map(|rect| rect.cells()).sum()
    }

    /// The parts of `rect` that are in it.
    pub fn within(&self, rect: Rect) -> impl Iterator<Item = Rect> {
        self.rects.iter().filter_map(move |own| own.intersection(rect))
    }

    /// The parts of `rect` that are not in it.
    #[must_use]
    pub fn missing(&self, rect: Rect) -> Vec<Rect> {
        let mut left = vec![rect];
        let mut next = Vec::new();
        for own in &self.rects {
            for part in left.drain(..) {
                part.minus(*own, &mut next);
            }
            std::mem::swap(&mut left, &mut next);
            if left.is_empty() {
                break;
            }
        }
        left
    }

    /// Adds `rect`; returns the parts that are new.
    ///
    /// # Errors
    /// If the region came to be in too many pieces. It is then of no use any more.
    pub fn insert(&mut self, rect: Rect) -> Result<Vec<Rect>, TooFragmented> {
        let new = self.missing(rect);
        for part in &new {
            self.absorb(*part);
        }
        if self.rects.len() > MAX_RECTS { Err(TooFragmented) } else { Ok(new) }
    }

    /// Adds a rectangle that shares no cell with the others, joining it to its neighbours.
    fn absorb(&mut self, mut rect: Rect) {
        while let Some((at, both)) =
            self.rects.iter().enumerate().find_map(|(at, own)| own.joined(rect).map(|both| (at, both)))
        {
            self.rects.swap_remove(at);
            rect = both;
        }
        self.rects.push(rect);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use sluice_engine_sdk::wire::Grid;

    use super::*;

    const GRID: Grid = Grid { positions: 9, layers: 7 };

    fn rect() -> impl Strategy<Value = Rect> {
        (0..9u32, 1..5u32, 0..7u16, 1..4u16).prop_map(|(first, wide, first_layer, high)| Rect {
            first,
            end: (first + wide).min(GRID.positions),
            first_layer,
            end_layer: (first_layer + high).min(GRID.layers),
        })
    }

    fn cells(rects: &[Rect]) -> Vec<(u32, u16)> {
        let mut all: Vec<_> = rects
            .iter()
            .flat_map(|r| (r.first..r.end).flat_map(|at| (r.first_layer..r.end_layer).map(move |l| (at, l))))
            .collect();
        all.sort_unstable();
        all
    }

    proptest! {
        #[test]
        fn a_region_is_the_set_of_its_cells(rects in proptest::collection::vec(rect(), 0..24), probe in rect()) {
            let mut region = Region::default();
            let mut naive = std::collections::BTreeSet::new();
            for rect in rects {
                let fresh: Vec<_> =
                    cells(&[rect]).into_iter().filter(|cell| naive.insert(*cell)).collect();
                prop_assert_eq!(cells(&region.insert(rect).unwrap()), fresh);
                prop_assert_eq!(cells(region.rects()), naive.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(region.cells(), naive.len() as u64);
            }
            let (inside, outside): (Vec<_>, Vec<_>) =
                cells(&[probe]).into_iter().partition(|cell| naive.contains(cell));
            prop_assert_eq!(cells(&region.within(probe).collect::<Vec<_>>()), inside);
            prop_assert_eq!(cells(&region.missing(probe)), outside);
        }
    }

    #[test]
    fn progress_by_layers_or_by_chunks_stays_one_piece() {
        let mut region = Region::default();
        for layer in 0..GRID.layers {
            let row = Rect { first_layer: layer, end_layer: layer + 1, ..GRID.whole() };
            region.insert(row).unwrap();
            assert_eq!(region.rects().len(), 1);
        }
        assert_eq!(region.rects(), [GRID.whole()]);
    }

    #[test]
    fn a_chessboard_is_refused() {
        let mut region = Region::default();
        let refused = (0..1000u32).find_map(|at| {
            let cell = Rect { first: at * 2, end: at * 2 + 1, first_layer: 0, end_layer: 1 };
            region.insert(cell).err().map(|_| at as usize)
        });
        assert_eq!(refused, Some(MAX_RECTS));
    }
}
