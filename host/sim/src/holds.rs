//! Blocks kept for a reader on another engine: each hold has a name and an end.

use std::collections::HashMap;
use std::time::Duration;

use crate::pool::BlockId;

#[derive(Debug)]
struct Hold {
    blocks: Vec<BlockId>,
    expires_at: Duration,
}

/// All holds of an engine. There are at most as many as finished sequences whose blocks fit the pool.
#[derive(Debug, Default)]
pub struct Holds {
    by_name: HashMap<String, Hold>,
    /// How many holds have each block: prompts share their heads.
    per_block: HashMap<BlockId, u32>,
}

impl Holds {
    /// Keeps blocks until `expires_at`. A hold of the same name is replaced and its blocks given back.
    pub fn insert(
        &mut self,
        name: String,
        blocks: Vec<BlockId>,
        expires_at: Duration,
    ) -> Option<Vec<BlockId>> {
        for block in &blocks {
            *self.per_block.entry(*block).or_default() += 1;
        }
        let replaced = self.by_name.insert(name, Hold { blocks, expires_at })?;
        self.forget(&replaced.blocks);
        Some(replaced.blocks)
    }

    /// Ends a hold and gives its blocks back; `None` when it is unknown or has expired.
    pub fn release(&mut self, name: &str) -> Option<Vec<BlockId>> {
        let hold = self.by_name.remove(name)?;
        self.forget(&hold.blocks);
        Some(hold.blocks)
    }

    /// Ends every hold whose time is over.
    pub fn expire(&mut self, now: Duration) -> Vec<Vec<BlockId>> {
        let over = self.by_name.extract_if(|_, hold| hold.expires_at <= now);
        let ended: Vec<_> = over.map(|(_, hold)| hold.blocks).collect();
        for blocks in &ended {
            self.forget(blocks);
        }
        ended
    }

    fn forget(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            if let Some(holds) = self.per_block.get_mut(block) {
                *holds -= 1;
                if *holds == 0 {
                    self.per_block.remove(block);
                }
            }
        }
    }

    /// When the next hold ends.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.by_name.values().map(|hold| hold.expires_at).min()
    }

    /// How many holds there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is no hold.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// How many different blocks are held.
    pub fn blocks(&self) -> usize {
        self.per_block.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn every_expired_hold_ends_whatever_the_order() {
        let mut holds = Holds::default();
        for (name, block, end) in [("a", 1, 30), ("b", 2, 10), ("c", 3, 20), ("d", 4, 10)] {
            assert_eq!(holds.insert(name.into(), vec![block, 9], at(end)), None);
        }
        assert_eq!((holds.blocks(), holds.next_expiry()), (5, Some(at(10))));
        assert_eq!(holds.expire(at(9)).len(), 0);
        let mut ended = holds.expire(at(20));
        ended.sort();
        assert_eq!(ended, [[2, 9], [3, 9], [4, 9]]);
        assert_eq!(holds.release("b"), None);
        assert_eq!(holds.blocks(), 2);
        assert_eq!(holds.release("a"), Some(vec![1, 9]));
        assert!(holds.is_empty());
        assert_eq!(holds.blocks(), 0);
    }

    #[test]
    fn a_hold_of_the_same_name_gives_the_blocks_of_the_first_back() {
        let mut holds = Holds::default();
        holds.insert("a".into(), vec![1, 2], at(30));
        assert_eq!(holds.insert("a".into(), vec![2, 3], at(40)), Some(vec![1, 2]));
        assert_eq!((holds.blocks(), holds.next_expiry()), (2, Some(at(40))));
    }
}
