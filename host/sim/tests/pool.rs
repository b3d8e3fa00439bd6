//! The block pool against a plain reference: counts by hand, names by hand.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use sluice_sim::pool::{BlockId, BlockPool, block_hash};

const BLOCKS: usize = 9;

#[derive(Debug, Clone)]
enum Operation {
    Take(usize),
    TakeNamed(u64),
    Publish { owner: usize, name: u64 },
    Retain(usize),
    Release(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        (0_usize..5).prop_map(Operation::Take),
        (0_u64..6).prop_map(Operation::TakeNamed),
        (any::<usize>(), 0_u64..6).prop_map(|(owner, name)| Operation::Publish { owner, name }),
        any::<usize>().prop_map(Operation::Retain),
        any::<usize>().prop_map(Operation::Release),
    ]
}

proptest! {
    #[test]
    fn no_block_is_free_and_referenced_and_no_evicted_name_is_found(
        operations in proptest::collection::vec(operation(), 1..60),
    ) {
        let mut pool = BlockPool::new(BLOCKS);
        let mut owners: Vec<Vec<BlockId>> = Vec::new();
        // What each block would hold, had it bytes: rewritten whenever it is taken fresh.
        let mut content: HashMap<BlockId, Option<u64>> = HashMap::new();
        for operation in operations {
            match operation {
                Operation::Take(count) => {
                    let free = pool.counts().free;
                    let generations: Vec<_> = (0..BLOCKS as u32).map(|block| pool.generation(block)).collect();
                    let taken = pool.take(&[], count);
                    for (block, before) in (0..).zip(generations) {
                        let is_taken = taken.iter().flatten().any(|taken| *taken == block);
                        prop_assert_eq!(pool.generation(block), before.map(|uses| uses + u64::from(is_taken)));
                    }
                    prop_assert_eq!(taken.is_some(), count <= free);
                    if let Some(blocks) = taken {
                        let referenced: HashSet<_> = owners.iter().flatten().collect();
                        prop_assert!(blocks.iter().all(|block| !referenced.contains(block) && *block != 0));
                        content.extend(blocks.iter().map(|block| (*block, None)));
                        owners.push(blocks);
                    }
                }
                Operation::TakeNamed(name) => {
                    let prefix = pool.cached_prefix(&[name]);
                    for block in &prefix {
                        prop_assert_eq!(content[block], Some(name));
                    }
                    let use_of = |pool: &BlockPool| prefix.first().map(|block| pool.generation(*block));
                    let before = use_of(&pool);
                    let taken = pool.take(&prefix, 0);
                    prop_assert_eq!(use_of(&pool), before);
                    prop_assert_eq!(taken.as_ref(), Some(&prefix));
                    owners.extend(taken);
                }
                Operation::Publish { owner, name } if !owners.is_empty() => {
                    let owner = &owners[owner % owners.len()];
                    if let Some(block) = owner.first() && content[block].is_none() {
                        if pool.cached_prefix(&[name]).is_empty() {
                            content.insert(*block, Some(name));
                        }
                        pool.publish(*block, name);
                    }
                }
                Operation::Retain(owner) if !owners.is_empty() => {
                    let blocks = owners[owner % owners.len()].clone();
                    pool.retain(&blocks);
                    owners.push(blocks);
                }
                Operation::Release(owner) if !owners.is_empty() => {
                    let owner = owner % owners.len();
                    pool.release(&owners.swap_remove(owner));
                }
                _ => {}
            }
            let used: HashSet<_> = owners.iter().flatten().collect();
            let counts = pool.counts();
            prop_assert_eq!((counts.total, counts.used), (BLOCKS - 1, used.len()));
            prop_assert_eq!(counts.free + counts.used, counts.total);
        }
    }
}

#[test]
fn the_tail_of_a_prompt_is_evicted_before_its_head() {
    let mut pool = BlockPool::new(4);
    let blocks = pool.take(&[], 3).unwrap();
    for (block, name) in blocks.iter().zip(10..) {
        pool.publish(*block, name);
    }
    pool.release(&blocks);
    pool.take(&[], 1).unwrap();
    assert_eq!(pool.cached_prefix(&[10, 11, 12]), blocks[..2]);
}

#[test]
fn reviving_cached_blocks_uses_up_free_ones() {
    let mut pool = BlockPool::new(4);
    let blocks = pool.take(&[], 2).unwrap();
    pool.publish(blocks[0], 1);
    pool.release(&blocks);
    let prefix = pool.cached_prefix(&[1]);
    assert_eq!(pool.take(&prefix, 3), None);
    assert_eq!(pool.counts().free, 3);
    assert!(pool.take(&prefix, 2).is_some());
}

#[test]
fn names_depend_on_all_tokens_before() {
    let names: HashSet<_> = [(0, vec![1, 2]), (0, vec![2, 1]), (1, vec![1, 2]), (0, vec![1, 2, 0])]
        .map(|(parent, tokens)| block_hash(parent, &tokens))
        .into();
    assert_eq!(names.len(), 4);
}
