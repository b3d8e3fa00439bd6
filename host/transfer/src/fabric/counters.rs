//! What went to and from a peer.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Verb;

/// Of one peer.
#[derive(Debug, Default)]
pub struct PeerCounters {
    read: VerbCounters,
    write: VerbCounters,
}

impl PeerCounters {
    /// Of one verb.
    pub fn of(&self, verb: Verb) -> &VerbCounters {
        match verb {
            Verb::Read => &self.read,
            Verb::Write => &self.write,
        }
    }
}

/// Of one peer and verb. Each figure is exact, all together are of about one moment.
#[derive(Debug, Default)]
pub struct VerbCounters {
    bytes: AtomicU64,
    operations: AtomicU64,
    failed: AtomicU64,
    refused_full: AtomicU64,
    runs_before: AtomicU64,
    runs: AtomicU64,
    queued: AtomicU64,
    deadline_misses: AtomicU64,
}

/// What the counters said at some moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes of posts that ended well.
    pub bytes: u64,
    /// Posts that ended well.
    pub operations: u64,
    /// Posts that ended with an error.
    pub failed: u64,
    /// Posts that were not taken since the queue was full.
    pub refused_full: u64,
    /// Copies of all posts taken, before neighbours were joined.
    pub runs_before: u64,
    /// Copies of all posts taken.
    pub runs: u64,
    /// Posts that have not ended.
    pub queued: u64,
    /// Waits that their deadline ended.
    pub deadline_misses: u64,
}

impl VerbCounters {
    /// A wait of the caller's was ended by its deadline: the fabric does not know of those.
    pub fn missed_deadline(&self) {
        self.deadline_misses.fetch_add(1, Relaxed);
    }

    pub(super) fn taken(&self, runs_before: u64, runs: usize) {
        self.runs_before.fetch_add(runs_before, Relaxed);
        self.runs.fetch_add(runs as u64, Relaxed);
        self.queued.fetch_add(1, Relaxed);
    }

    pub(super) fn refused_full(&self) {
        self.refused_full.fetch_add(1, Relaxed);
    }

    pub(super) fn ended(&self, bytes: u64, well: bool) {
        self.queued.fetch_sub(1, Relaxed);
        if well {
            self.bytes.fetch_add(bytes, Relaxed);
            self.operations.fetch_add(1, Relaxed);
        } else {
            self.failed.fetch_add(1, Relaxed);
        }
    }

    /// What they say now.
    pub fn figures(&self) -> Figures {
        Figures {
            bytes: self.bytes.load(Relaxed),
            operations: self.operations.load(Relaxed),
            failed: self.failed.load(Relaxed),
            refused_full: self.refused_full.load(Relaxed),
            runs_before: self.runs_before.load(Relaxed),
            runs: self.runs.load(Relaxed),
            queued: self.queued.load(Relaxed),
            deadline_misses: self.deadline_misses.load(Relaxed),
        }
    }
}
