//! Request ids of our own: engines match legs by them, so a client's id must never reach an engine.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_engine_sdk::wire::TransferId;

/// Ids that are unique over hosts and restarts.
#[derive(Debug)]
pub struct Ids {
    run: u64,
    next: AtomicU64,
    transfers: AtomicU64,
    /// Two halves of a transfer's name, each under a key of its own.
    halves: [RandomState; 2],
}

impl Default for Ids {
    fn default() -> Self {
        // The standard library's hasher keys come from the system's random source.
        Self {
            run: RandomState::new().build_hasher().finish(),
            next: AtomicU64::new(0),
            transfers: AtomicU64::new(0),
            halves: [RandomState::new(), RandomState::new()],
        }
    }
}

impl Ids {
    /// A new request's id.
    pub fn next(&self) -> RequestId {
        RequestId { run: self.run, number: self.next.fetch_add(1, Ordering::Relaxed) }
    }

    /// A new transfer's name. Nobody who knows another can tell it: engines are named transfers by their requests.
    pub fn transfer(&self) -> TransferId {
        let number = self.transfers.fetch_add(1, Ordering::Relaxed);
        let [high, low] = self.halves.each_ref().map(|key| u128::from(key.hash_one(number)));
        TransferId(high << 64 | low)
    }
}

/// One request of one run of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestId {
    run: u64,
    number: u64,
}

impl RequestId {
    /// The id of an attempt's legs. Both legs of an attempt share it; no two attempts do.
    pub fn attempt(self, attempt: u32) -> String {
        format!("slc-{:016x}-{}-{attempt}", self.run, self.number)
    }

    /// The id of a probe's legs: whoever reads an engine's log sees that it is no client's.
    pub fn probe(self) -> String {
        format!("sluice-probe-{:016x}-{}", self.run, self.number)
    }

    /// A number that no other request has.
    pub fn nonce(self) -> u64 {
        self.run.wrapping_add(self.number)
    }
}

impl std::fmt::Display for RequestId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "slc-{:016x}-{}", self.run, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_differ_in_both_halves() {
        let (one, two) = (Ids::default(), Ids::default());
        let names: Vec<u128> = (0..100).flat_map(|_| [one.transfer().0, two.transfer().0]).collect();
        for half in [|name: u128| name >> 64, |name: u128| name & u128::from(u64::MAX)] {
            let distinct: std::collections::BTreeSet<_> = names.iter().map(|name| half(*name)).collect();
            assert_eq!(distinct.len(), names.len());
        }
    }

    #[test]
    fn ids_differ_by_run_request_and_attempt() {
        let (one, two) = (Ids::default(), Ids::default());
        let (a, b, c) = (one.next(), one.next(), two.next());
        let ids =
            [a.attempt(0), a.attempt(1), b.attempt(0), c.attempt(0), a.to_string(), a.probe(), b.probe()];
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
    }
}
