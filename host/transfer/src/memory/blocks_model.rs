//! The block table held against a model that remembers every use of every block.

use crate::protocol::BlockRef;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::block::*;
use super::blocks::*;

const COUNT: u32 = 5;

#[derive(Debug, Clone, Copy)]
enum Act {
    Allocate(u32),
    Expose(usize),
    Settle(usize),
    Free(usize),
}

/// What became of one use of a block.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    given_up: bool,
    writers: u32,
}

#[derive(Default)]
struct Model {
    uses: BTreeMap<BlockRef, Use>,
}

impl Model {
    fn last_use(&self, index: u32) -> Option<BlockRef> {
        self.uses.keys().filter(|block| block.index == index).max().copied()
    }

    fn is_free(&self, index: u32) -> bool {
        self.last_use(index).is_none_or(|block| self.uses[&block].given_up && self.uses[&block].writers == 0)
    }

    fn in_quarantine(&self) -> usize {
        self.uses.values().filter(|one| one.given_up && one.writers > 0).count()
    }
}

fn act() -> impl Strategy<Value = Act> {
    // Positions in the list of all references there ever were: most are old ones.
    let any = 0..64_usize;
    prop_oneof![
        (0..4_u32).prop_map(Act::Allocate),
        any.clone().prop_map(Act::Expose),
        any.clone().prop_map(Act::Settle),
        any.prop_map(Act::Free),
    ]
}

/// One act on both; they must agree on whether it is possible.
fn step(table: &mut BlockTable, model: &mut Model, seen: &mut Vec<BlockRef>, act: Act) {
    let pick = |at: usize, seen: &[BlockRef]| {
        seen.get(seen.len().saturating_sub(1 + at % 12))
            .copied()
            .unwrap_or(BlockRef { index: 0, generation: 0 })
    };
    let live = |model: &Model, block: BlockRef| model.last_use(block.index) == Some(block);
    match act {
        Act::Allocate(asked) => {
            let free = (0..COUNT).filter(|index| model.is_free(*index)).count() as u32;
            let mut new = Vec::new();
            let given = table.allocate(asked, &mut new);
            assert_eq!(given.is_ok(), asked <= free, "{given:?}");
            assert_eq!(new.len() as u32, if given.is_ok() { asked } else { 0 }, "all or none");
            for block in new {
                assert!(model.is_free(block.index), "a block is handed out that is not free");
                assert!(!model.uses.contains_key(&block), "a use is handed out twice");
                model.uses.insert(block, Use::default());
                seen.push(block);
            }
        }
        Act::Expose(at) => {
            let block = pick(at, seen);
            let possible = live(model, block) && !model.uses[&block].given_up;
            assert_eq!(table.expose(block).is_ok(), possible);
            if possible {
                model.uses.get_mut(&block).unwrap().writers += 1;
            }
        }
        Act::Settle(at) => {
            let block = pick(at, seen);
            let possible = live(model, block) && model.uses[&block].writers > 0;
            assert_eq!(table.settle(block).is_ok(), possible);
            if possible {
                model.uses.get_mut(&block).unwrap().writers -= 1;
            }
        }
        Act::Free(at) => {
            let block = pick(at, seen);
            let given = table.free_block(block);
            match (live(model, block), model.uses.get(&block).copied()) {
                (true, Some(one)) if !one.given_up => {
                    let expected = if one.writers == 0 { Freed::Free } else { Freed::Quarantined };
                    assert_eq!(given, Ok(expected));
                    model.uses.get_mut(&block).unwrap().given_up = true;
                }
                (true, _) => assert!(matches!(given, Err(BlockError::FreedTwice { .. })), "{given:?}"),
                (false, _) => assert!(matches!(given, Err(BlockError::Stale { .. })), "{given:?}"),
            }
        }
    }
}

proptest! {
    #[test]
    fn no_block_is_handed_out_while_it_is_held_or_written(acts in prop::collection::vec(act(), 1..120)) {
        let (mut table, mut model, mut seen) = (BlockTable::new(COUNT).unwrap(), Model::default(), Vec::new());
        for act in acts {
            step(&mut table, &mut model, &mut seen, act);
            let free = (0..COUNT).filter(|index| model.is_free(*index)).count();
            prop_assert_eq!(table.free() as usize, free);
            prop_assert_eq!(table.quarantined() as usize, model.in_quarantine());
            for (block, one) in &model.uses {
                let held = model.last_use(block.index) == Some(*block) && !one.given_up;
                prop_assert_eq!(table.is_held(*block), held);
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let mut table = BlockTable::new(2).unwrap();
    let mut held = Vec::new();
    table.allocate(2, &mut held).unwrap();
    assert_eq!(held.iter().map(|block| block.index).collect::<Vec<_>>(), [0, 1], "neighbours come in order");
    let refused = table.allocate(1, &mut held).unwrap_err();
    assert_eq!(refused, BlockError::Exhausted { asked: 1, free: 0, quarantined: 0, count: 2 });
    let far = BlockRef { index: 2, generation: 1 };
    assert_eq!(table.free_block(far), Err(BlockError::Unknown { index: 2, count: 2 }));
    let never = BlockRef { index: 0, generation: 0 };
    assert_eq!(table.state(never), Err(BlockError::Stale { index: 0, asked: 0, now: 1 }));
    let state = BlockState::Owned;
    assert_eq!(table.settle(held[0]), Err(BlockError::WrongState { index: 0, action: "settled", state }));
    assert_eq!(BlockTable::new(MAX_BLOCKS + 1).unwrap_err(), BlockError::TooMany { count: MAX_BLOCKS + 1 });
}
