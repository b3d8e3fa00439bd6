//! How many decisions each workload had in a pool: what rotating policies count with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use sluice_core::workload::DEFAULT_WORKLOAD;

/// Workloads counted apart in one pool: 4 times as many as may be bound at once. Names come and go with the file, and
/// those beyond count together.
const WORKLOADS_COUNTED: usize = 4 * sluice_policy::WORKLOADS_MAX;

/// One pool's counts, each from 0.
#[derive(Debug, Default)]
pub struct Sequences {
    default: AtomicU64,
    others: AtomicU64,
    /// Few enough to be looked through; a count outlasts the generation that bound its workload.
    named: ArcSwap<Vec<Arc<Sequence>>>,
}

#[derive(Debug)]
struct Sequence {
    workload: String,
    next: AtomicU64,
}

impl Sequences {
    /// The number of a workload's next decision.
    pub fn next(&self, workload: &str) -> u64 {
        if workload == DEFAULT_WORKLOAD {
            return self.default.fetch_add(1, Ordering::Relaxed);
        }
        match find(&self.named.load(), workload) {
            Some(known) => known.next.fetch_add(1, Ordering::Relaxed),
            None => self.first(workload),
        }
    }

    fn first(&self, workload: &str) -> u64 {
        let new = Arc::new(Sequence { workload: workload.to_owned(), next: AtomicU64::new(0) });
        self.named.rcu(|known| {
            let mut known = known.to_vec();
            if known.len() < WORKLOADS_COUNTED && find(&known, workload).is_none() {
                known.push(new.clone());
            }
            known
        });
        let known = self.named.load();
        let sequence = find(&known, workload).map_or(&self.others, |known| &known.next);
        sequence.fetch_add(1, Ordering::Relaxed)
    }
}

fn find<'a>(known: &'a [Arc<Sequence>], workload: &str) -> Option<&'a Arc<Sequence>> {
    known.iter().find(|known| known.workload == workload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_counts_by_itself() {
        let sequences = Sequences::default();
        for (workload, expected) in
            [("a", 0), ("a", 1), (DEFAULT_WORKLOAD, 0), ("b", 0), ("a", 2), (DEFAULT_WORKLOAD, 1)]
        {
            assert_eq!(sequences.next(workload), expected, "{workload}");
        }
    }

    #[test]
    fn too_many_names_count_together() {
        let sequences = Sequences::default();
        for name in 0..WORKLOADS_COUNTED {
            assert_eq!(sequences.next(&format!("w{name}")), 0);
        }
        assert_eq!((sequences.next("more"), sequences.next("and more")), (0, 1));
        assert_eq!(sequences.next("w0"), 1, "those known before go on");
    }
}
