//! Gaps between turns by workload: what is told of a conversation that has too few of its own.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_core::session::Gaps;

/// Workloads remembered: bindings of one file, and those of files before it. The one that had no gap for longest goes.
pub const WORKLOADS_AT_MOST: usize = 1_024;

/// Gaps that a workload's figures are about: enough to tell a spread, and few enough that another hour of the day shows after some
/// hundreds of turns.
pub const GAPS_WEIGHED: u32 = 256;

/// By the name of the workload.
#[derive(Debug, Default)]
pub struct Workloads(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    gaps: HashMap<String, (u64, Gaps)>,
    /// Gaps seen so far, to tell who had none for longest.
    seen: u64,
}

impl Workloads {
    /// One more gap, in milliseconds.
    pub fn observe(&self, workload: &str, gap_ms: u64) {
        let mut table = self.table();
        table.seen += 1;
        let seen = table.seen;
        if !table.gaps.contains_key(workload) {
            table.make_room();
            table.gaps.insert(workload.to_owned(), (seen, Gaps::default()));
        }
        if let Some((at, gaps)) = table.gaps.get_mut(workload) {
            *at = seen;
            gaps.observe(gap_ms, GAPS_WEIGHED);
        }
    }

    /// What is known of a workload.
    pub fn of(&self, workload: &str) -> Gaps {
        self.table().gaps.get(workload).map(|(_, gaps)| *gaps).unwrap_or_default()
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<(String, Gaps)> {
        let mut all: Vec<_> =
            self.table().gaps.iter().map(|(name, (_, gaps))| (name.clone(), *gaps)).collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }

    /// Puts back what was known once.
    pub fn restore(&self, all: Vec<(String, Gaps)>) {
        let mut table = self.table();
        for (name, gaps) in all.into_iter().take(WORKLOADS_AT_MOST) {
            table.seen += 1;
            let seen = table.seen;
            table.gaps.insert(name, (seen, gaps));
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn make_room(&mut self) {
        if self.gaps.len() < WORKLOADS_AT_MOST {
            return;
        }
        let oldest = self.gaps.iter().min_by_key(|(_, (at, _))| *at).map(|(name, _)| name.clone());
        oldest.map(|name| self.gaps.remove(&name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_bounded_and_the_longest_silent_goes() {
        let workloads = Workloads::default();
        (0..WORKLOADS_AT_MOST).for_each(|number| workloads.observe(&number.to_string(), 5));
        workloads.observe("0", 15);
        workloads.observe("new", 5);
        assert_eq!(workloads.all().len(), WORKLOADS_AT_MOST);
        assert_eq!((workloads.of("0").mean_ms(), workloads.of("1").count()), (10.0, 0));
        let other = Workloads::default();
        other.restore(workloads.all());
        assert_eq!(other.all(), workloads.all());
    }
}
