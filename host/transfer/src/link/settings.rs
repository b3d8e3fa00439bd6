//! Bounds of the listener, with their reasons.

use sluice_engine_sdk::transport::Pace;

/// The most engines (ranks) of one host: more accelerators than any node has, a rank each, and as many slabs of
/// engines that are going.
pub const MAX_ENGINES: usize = 64;

/// The most connections that are not attached yet: each costs a thread and a second of a slow hello.
pub const MAX_HANDSHAKES: usize = 16;

/// How a listener treats engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Pings, and how much silence is death.
    pub pace: Pace,
    /// From a connection to its welcome, in milliseconds.
    pub handshake_ms: u64,
    /// Engines at a time, at most [`MAX_ENGINES`].
    pub max_engines: usize,
    /// Events that wait to be taken, of all engines together: 200 KB each at their longest. While it is full nothing is read from engines, and
    /// theirs fill up.
    pub events: usize,
    /// Holds and transfers of one engine that the layer above keeps: told to engines.
    pub max_open: u32,
    /// Users that may attach beside this process's own.
    pub other_uids: Vec<u32>,
}

impl Default for Settings {
    /// A process under load is late by seconds, so it is dead after ten.
    fn default() -> Self {
        Self {
            pace: Pace { ping_ms: 2_000, silence_ms: 10_000 },
            handshake_ms: 2_000,
            max_engines: MAX_ENGINES,
            events: 1_024,
            max_open: 8_192,
            other_uids: Vec::new(),
        }
    }
}
