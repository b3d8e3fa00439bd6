//! Which requests are traced, and under which ids.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use super::traceparent::TraceParent;
use crate::config::SampleRatio;

/// Makes trace and span ids, and picks the share of requests that is traced.
#[derive(Debug)]
pub struct Sampler {
    ratio: SampleRatio,
    seed: u64,
    next: AtomicU64,
}

/// A request's own place in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    /// The request's span, the parent of all others here.
    pub root: TraceParent,
    /// The client's span.
    pub parent: Option<u64>,
}

impl Sampler {
    /// Traces this share of the requests whose clients leave it open.
    pub fn new(ratio: SampleRatio) -> Self {
        // The standard library's hasher keys come from the system's random source.
        Self::seeded(ratio, RandomState::new().build_hasher().finish())
    }

    fn seeded(ratio: SampleRatio, seed: u64) -> Self {
        Self { ratio, seed, next: AtomicU64::new(0) }
    }

    /// A new request's place: in the client's trace, whose choice is kept, or in one of its own.
    pub fn begin(&self, client: Option<TraceParent>) -> Trace {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let random = |n: u64| mix(self.seed.wrapping_add(mix(number.wrapping_mul(4).wrapping_add(n))));
        let span = random(0).max(1);
        match client {
            Some(client) => Trace { root: TraceParent { span, ..client }, parent: Some(client.span) },
            None => {
                let trace = (u128::from(random(1)) << 64 | u128::from(random(2))).max(1);
                Trace { root: TraceParent { trace, span, sampled: self.picks(random(2)) }, parent: None }
            }
        }
    }

    /// By the trace's id alone, so that every host picks alike.
    fn picks(&self, low_bits: u64) -> bool {
        low_bits % u64::from(SampleRatio::ALL.per_million) < u64::from(self.ratio.per_million)
    }
}

impl Trace {
    /// The place of the request's own span of this number.
    pub fn child(&self, number: u64) -> TraceParent {
        TraceParent { span: mix(self.root.span.wrapping_add(number.wrapping_add(1))).max(1), ..self.root }
    }
}

/// SplitMix64's step: neighbours in, strangers out.
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_share_asked_for_is_traced() {
        for (per_million, from, to) in [(0, 0, 0), (1_000_000, 10_000, 10_000), (250_000, 2_300, 2_700)] {
            let sampler = Sampler::seeded(SampleRatio { per_million }, 7);
            let traced = (0..10_000).filter(|_| sampler.begin(None).root.sampled).count();
            assert!((from..=to).contains(&traced), "{per_million}: {traced}");
        }
    }

    #[test]
    fn the_clients_trace_and_choice_are_kept() {
        let sampler = Sampler::seeded(SampleRatio { per_million: 0 }, 7);
        for sampled in [true, false] {
            let client = TraceParent { trace: 5, span: 6, sampled };
            let trace = sampler.begin(Some(client));
            assert_eq!((trace.root.trace, trace.parent, trace.root.sampled), (5, Some(6), sampled));
            assert_ne!(trace.root.span, 6);
        }
    }

    #[test]
    fn ids_are_distinct() {
        let sampler = Sampler::seeded(SampleRatio::ALL, 7);
        let traces: Vec<_> = (0..1_000).map(|_| sampler.begin(None)).collect();
        let ids: BTreeSet<_> = traces.iter().map(|trace| trace.root.trace).collect();
        let spans: BTreeSet<_> = traces
            .iter()
            .flat_map(|trace| (0..9).map(|n| trace.child(n).span).chain([trace.root.span]))
            .collect();
        assert_eq!((ids.len(), spans.len()), (1_000, 10_000));
    }
}
