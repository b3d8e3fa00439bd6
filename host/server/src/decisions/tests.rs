//! What the ring keeps.

use super::*;
use crate::clock::SystemClock;
use crate::config::{self, Secrets};
use crate::fleet::Fleet;
use crate::ids::Ids;
use crate::telemetry::metrics::Metrics;

fn pool() -> Arc<Pool> {
    let text = "[[pool]]\nname = \"main\"\nmodel = \"m\"\nmode = \"unified\"\n\
                [[pool.worker]]\nname = \"w0\"\nrole = \"unified\"\nurl = \"http://127.0.0.1:1\"\n";
    let config = config::parse(std::path::Path::new("sluice.toml"), text).expect("a configuration");
    let fleet = Fleet::new(&config, &Secrets::default(), &SystemClock::shared(), &Metrics::default());
    fleet.pools()[0].clone()
}

fn taken<'a>(pool: &'a Arc<Pool>, request: RequestId, reason: &'a str) -> Taken<'a> {
    Taken {
        at_ms: 5,
        request,
        client_request: None,
        pool,
        tenant: "t",
        workload: "default",
        policy: "p",
        module: "m",
        version: "1",
        generation: 1,
        source: Source::Policy,
        fault: None,
        placement: "disaggregated",
        transfer: Some(TransferMode::Pull),
        prefill: Some(&pool.workers[0]),
        decode: None,
        reason,
        attempt: 0,
        rows: 1,
        prompt_tokens: 10,
        cached_tokens: 4,
    }
}

#[test]
fn the_newest_are_kept() {
    let (ring, pool, ids) = (Decisions::default(), pool(), Ids::default());
    assert_eq!(ring.last(10, |_| true), []);
    let count = DECISIONS_KEPT as u64 + 5;
    for number in 0..count {
        ring.write(&taken(&pool, ids.next(), &number.to_string()));
    }
    let told = ring.last(usize::MAX, |_| true);
    assert_eq!(told.len(), DECISIONS_KEPT);
    assert_eq!((told[0].number, told[0].reason.as_str()), (count - 1, (count - 1).to_string().as_str()));
    assert_eq!(told.last().expect("one").number, 5);
    assert_eq!(ring.last(3, |told| told.number % 2 == 0).len(), 3);
}

#[test]
fn late_binding_completes_its_own_decision_only() {
    let (ring, pool, ids) = (Decisions::default(), pool(), Ids::default());
    let first = ring.write(&taken(&pool, ids.next(), "first"));
    ring.decode_bound(first, &pool.workers[0], Source::Fault, Some("trap"));
    let told = &ring.last(1, |_| true)[0];
    assert_eq!((told.decode.as_deref(), told.source.as_str()), (Some("w0"), "fault"));
    for _ in 0..DECISIONS_KEPT {
        ring.write(&taken(&pool, ids.next(), "later"));
    }
    ring.decode_bound(first, &pool.workers[0], Source::Policy, None);
    assert!(ring.last(usize::MAX, |told| told.decode.is_some()).is_empty(), "its place is another's now");
}

#[test]
fn texts_are_cut() {
    let (ring, pool, ids) = (Decisions::default(), pool(), Ids::default());
    let long = "\u{e9}".repeat(TEXT_BYTES_AT_MOST);
    ring.write(&taken(&pool, ids.next(), &long));
    assert_eq!(ring.last(1, |_| true)[0].reason, long[..TEXT_BYTES_AT_MOST]);
}
