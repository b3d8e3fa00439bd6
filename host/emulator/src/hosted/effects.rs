//! What follows from a change of the books, in the order in which it is to be done.

use sluice_engine_sdk::wire::ToHost;
use sluice_sim::Engine;
use sluice_sim::engine::{Loaded, SequenceId};
use sluice_sim::pool::BlockId;

/// To be done by the owner of engine and session.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Effects {
    /// Named to the host, so not to be reused.
    pub retain: Vec<BlockId>,
    /// What became of what sequences waited for.
    pub came: Vec<(SequenceId, Came)>,
    /// Given back.
    pub release: Vec<BlockId>,
    /// What the host is to be told.
    pub say: Vec<ToHost>,
    /// How receives ended, for the counters.
    pub ended: Vec<ReceiveEnd>,
}

/// How a receive that a sequence waited for ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReceiveEnd {
    /// What was to come has.
    Came {
        /// In whole positions.
        tokens: u32,
        /// Since it was asked for.
        took_ms: u64,
    },
    /// It is computed instead; why.
    Failed(String),
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// So many leading tokens are in place, cached ones included.
    Tokens(u32),
    /// Nothing, and nothing will: its blocks are its own.
    Nothing,
    /// Nothing, but its blocks are not its own.
    NotOwn,
}

impl Effects {
    /// These first, and then `more`.
    pub fn extend(&mut self, more: Self) {
        self.retain.extend(more.retain);
        self.came.extend(more.came);
        self.release.extend(more.release);
        self.say.extend(more.say);
        self.ended.extend(more.ended);
    }

    /// Does what concerns the engine; what is to be said and counted is left.
    pub fn on(&mut self, engine: &mut Engine) {
        engine.retain(&std::mem::take(&mut self.retain));
        for (sequence, came) in self.came.drain(..) {
            // One that was aborted meanwhile waits for nothing.
            engine.loaded(
                sequence,
                match came {
                    Came::Tokens(tokens) => Loaded::Tokens(tokens as usize),
                    Came::Nothing => Loaded::Nothing,
                    Came::NotOwn => Loaded::ComputeElsewhere,
                },
            );
        }
        engine.release(&std::mem::take(&mut self.release));
    }
}
