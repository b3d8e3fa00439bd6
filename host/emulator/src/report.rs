//! What an emulator tells about itself.

use sluice_sim::engine::{Counts, Occupancy};
use sluice_sim::histogram::Histogram;

/// Everything that `/metrics` and `/emulator/state` show.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What the engine has to do.
    pub occupancy: Occupancy,
    /// What the engine did.
    pub counts: Counts,
    /// KV that moved.
    pub transfers: Transfers,
    /// What is agreed with the host that moves KV.
    pub kv_link: KvLink,
    /// Requests that would have killed or hung a real engine, answered 500.
    pub softened_failures: u64,
}

/// The link to the host of this node, where KV moves over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvLink {
    /// Whether a host is there.
    pub attached: bool,
    /// How often one was attached to.
    pub attaches: u64,
    /// Holds that were said and have not ended.
    pub holds: usize,
    /// Receives that were said and have not ended.
    pub receives: usize,
    /// Blocks that are not this engine's to reuse, each as often as it was named to a host that has not given it back.
    pub named_blocks: usize,
    /// Messages that the host was not told.
    pub unsent: u64,
}

const TRANSFER_S: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0];
const TRANSFER_BYTES: &[f64] = &[
    2048.0,
    8192.0,
    32768.0,
    131_072.0,
    524_288.0,
    2_097_152.0,
    8_388_608.0,
    33_554_432.0,
    134_217_728.0,
    536_870_912.0,
    2_147_483_648.0,
    8_589_934_592.0,
];

/// KV that moved: over the KV socket, or to here by the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Transfers {
    /// Bytes of each read by this engine, in whole blocks; or of each that the host brought, in whole positions.
    pub read_bytes: Histogram,
    /// How long each of them took, seconds.
    pub read_s: Histogram,
    /// Bytes that others read here.
    pub served_bytes: u64,
    /// Reads that failed, and KV that the host did not bring.
    pub failed: u64,
    /// Holds at other engines ended early, because the request was refused or aborted.
    pub released_early: u64,
}

impl Default for Transfers {
    fn default() -> Self {
        Self {
            read_bytes: Histogram::new(TRANSFER_BYTES),
            read_s: Histogram::new(TRANSFER_S),
            served_bytes: 0,
            failed: 0,
            released_early: 0,
        }
    }
}
