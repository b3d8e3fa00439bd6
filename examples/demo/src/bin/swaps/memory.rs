//! What the host holds at a moment.

use std::fmt::{Display, Formatter, Result};

use anyhow::Context;
use sluice_harness::{Client, ProcessTree};

use crate::POLICY;

/// One look.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Resident, in bytes.
    pub bytes: u64,
    /// Pieces of compiled code: a compiled policy is one, for as long as anything of it is there, and the engine's own
    /// may be another.
    pub code_pieces: usize,
    /// Instances of the policy in force.
    pub instances: u64,
}

impl Memory {
    /// At this moment.
    pub async fn of(host: ProcessTree, admin: &Client) -> anyhow::Result<Self> {
        let policy = admin.get(&format!("/admin/policies/{POLICY}")).await?.json();
        let instances = policy["instances"].as_u64().with_context(|| format!("no instances in {policy}"))?;
        Ok(Self { bytes: host.resident_bytes(), code_pieces: host.code_pieces(), instances })
    }
}

impl Display for Memory {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mb = self.bytes as f64 / 1e6;
        write!(f, "{mb:.1} MB resident, {} pieces of code, {} instances", self.code_pieces, self.instances)
    }
}
