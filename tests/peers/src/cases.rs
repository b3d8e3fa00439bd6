//! What is measured: bodies, answers and concurrencies.

use std::net::SocketAddr;

use crate::canned::Served;
use crate::load::Load;

/// Body lengths, in bytes.
const SMALL_BYTES: usize = 2 * 1_024;
const LARGE_BYTES: usize = 64 * 1_024;

/// How requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By one of two engines.
    Plain,
    /// By one of two prefill engines and one of two decode engines.
    Split,
}

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Case {
    /// As on the command line and in the table.
    pub name: &'static str,
    /// How it is served.
    pub mode: Mode,
    body_bytes: usize,
    streamed: bool,
}

/// All of them.
pub const CASES: [Case; 6] = [
    Case { name: "plain2k", mode: Mode::Plain, body_bytes: SMALL_BYTES, streamed: false },
    Case { name: "plain64k", mode: Mode::Plain, body_bytes: LARGE_BYTES, streamed: false },
    Case { name: "stream", mode: Mode::Plain, body_bytes: SMALL_BYTES, streamed: true },
    Case { name: "pd2k", mode: Mode::Split, body_bytes: SMALL_BYTES, streamed: false },
    Case { name: "pd64k", mode: Mode::Split, body_bytes: LARGE_BYTES, streamed: false },
    Case { name: "pdstream", mode: Mode::Split, body_bytes: SMALL_BYTES, streamed: true },
];

/// Clients at a time: latency is seen with one, cost with both.
pub const CONCURRENCIES: [usize; 2] = [1, 32];

impl Case {
    /// The case of a name.
    pub fn named(name: &str) -> Option<Self> {
        CASES.into_iter().find(|case| case.name == name)
    }

    /// The load on a router at this address.
    pub fn load(self, address: SocketAddr) -> Load {
        let served = match self.mode {
            Mode::Plain => Served::Alone,
            Mode::Split => Served::Pulled,
        };
        Load { address, body_bytes: self.body_bytes, streamed: self.streamed, pace_ms: 0, served }
    }
}
