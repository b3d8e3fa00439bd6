//! Engines that hold KV, by clocks of their own. They believe whoever reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::flaw::Rule;

/// What an engine was told to hold for, by its clock.
pub const HELD_FOR_MS: u64 = 1_000;

/// How far an engine's clock may go wrong, parts in a thousand.
pub const SKEW_AT_MOST: u64 = 10;

#[derive(Debug)]
pub struct Engine {
    pub id: Arc<str>,
    skew: i64,
    holds: BTreeMap<u64, EngineHold>,
    restarts: u64,
}

#[derive(Debug)]
struct EngineHold {
    tokens: Vec<u32>,
    scope: usize,
    expires_at_ms: u64,
    was_read: bool,
}

/// A request that reads held KV.
#[derive(Debug)]
pub struct Read {
    pub handle: u64,
    pub engine: Arc<str>,
    pub scope: usize,
    pub tokens: u32,
    pub blocks: u32,
    pub arrives_ms: u64,
}

/// What came of it.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Served {
        of_tokens: u32,
    },
    /// Another engine was meant, one that is gone.
    Refused,
    Wrong(Rule),
}

impl Engine {
    pub fn new(worker: u64, skew: i64) -> Self {
        Self { id: format!("{worker}-0").into(), skew, holds: BTreeMap::new(), restarts: 0 }
    }

    pub fn restart(&mut self, worker: u64) {
        self.restarts += 1;
        self.id = format!("{worker}-{}", self.restarts).into();
        self.holds.clear();
    }

    pub fn hold(&mut self, handle: u64, tokens: Vec<u32>, scope: usize, now_ms: u64) {
        // A clock that goes fast ends the time early.
        let for_ms = HELD_FOR_MS * 1_000 / (1_000 + self.skew) as u64;
        let hold = EngineHold { tokens, scope, expires_at_ms: now_ms + for_ms, was_read: false };
        self.holds.insert(handle, hold);
    }

    pub fn read(&mut self, read: &Read, prompt: &[u32], block_tokens: u32) -> Answer {
        if read.engine != self.id {
            return Answer::Refused;
        }
        let Some(hold) = self.holds.get_mut(&read.handle) else { return Answer::Wrong(Rule::IsAPrefix) };
        let tokens = read.tokens as usize;
        if hold.was_read {
            return Answer::Wrong(Rule::UsedOnce);
        }
        if read.arrives_ms >= hold.expires_at_ms {
            return Answer::Wrong(Rule::UsedInTime);
        }
        if read.scope != hold.scope {
            return Answer::Wrong(Rule::ScopeKept);
        }
        let is_prefix = tokens < prompt.len() && hold.tokens.get(..tokens) == prompt.get(..tokens);
        if !is_prefix || read.blocks != read.tokens.div_ceil(block_tokens) {
            return Answer::Wrong(Rule::IsAPrefix);
        }
        hold.was_read = true;
        Answer::Served { of_tokens: hold.tokens.len() as u32 }
    }
}
