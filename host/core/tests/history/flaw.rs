//! Bugs that are put in, each of which the simulation must find.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// What is taken stays there.
    DoubleTake,
    /// A turn's time is not looked at again before it is sent.
    NotAskedAgain,
    /// Turns are used up to the last moment.
    NoMargin,
    /// Tenants are no part of the key.
    CrossTenant,
    /// The newest branch is taken in the place of the proven one.
    BranchMixUp,
    /// Who finds its turn gone takes what else is there.
    TakesAnother,
    /// A policy's lease is believed where it outlives the engine's own time.
    LeaseTrusted,
    /// Turns come back from data that was written while the host went on.
    OldDataTrusted,
}

/// What must never be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    UsedOnce,
    UsedInTime,
    ScopeKept,
    IsAPrefix,
    EndsOnce,
}

pub struct Broken {
    pub seed: u64,
    pub rule: Rule,
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} did not hold in schedule {}: {}", self.rule, self.seed, self.what)
    }
}
