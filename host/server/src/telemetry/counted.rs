//! A counter per value of a label, resolved once: counting only touches an atomic.

use std::marker::PhantomData;

use prometheus_client::metrics::counter::Counter;

use super::families::{Counters, Labels};
use super::labels::Label;

/// A counter per value of a label. All are there from the start: an alert on a rate must not miss the first one.
#[derive(Debug)]
pub(super) struct Counted<L> {
    counters: Box<[Counter]>,
    by: PhantomData<L>,
}

impl<L: Label> Counted<L> {
    pub fn resolve<const N: usize>(family: &Counters<N>, labels: impl Fn(String) -> Labels<N>) -> Self {
        let counters =
            L::ALL.iter().map(|label| family.get_or_create_owned(&labels(label.name().to_owned()))).collect();
        Self { counters, by: PhantomData }
    }

    pub fn inc(&self, label: L) {
        self.counters[label.index()].inc();
    }

    pub fn add(&self, label: L, count: u64) {
        self.counters[label.index()].inc_by(count);
    }
}
