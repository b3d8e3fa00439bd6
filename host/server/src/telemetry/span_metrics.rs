//! What became of spans: handles resolved once.

use prometheus_client::metrics::counter::Counter;

use super::counted::Counted;
use super::families::Spans;
use super::labels::SpansDropped;

/// Spans sent and lost.
#[derive(Debug)]
pub struct SpanMetrics {
    exported: Counter,
    dropped: Counted<SpansDropped>,
}

impl SpanMetrics {
    pub(super) fn resolve(families: &Spans) -> Self {
        Self {
            exported: families.exported.clone(),
            dropped: Counted::resolve(&families.dropped, |reason| [("reason", reason)]),
        }
    }

    /// The collector took so many.
    pub fn exported(&self, count: u64) {
        self.exported.inc_by(count);
    }

    /// So many are lost.
    pub fn dropped(&self, why: SpansDropped, count: u64) {
        self.dropped.add(why, count);
    }
}
