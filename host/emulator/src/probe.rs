//! A look inside, for tests.

use sluice_sim::engine::Occupancy;
use tokio::sync::watch;

use crate::client::{Command, EngineClient};
use crate::report::{KvLink, Report};
use crate::run::Died;

/// What the engine has to do, told on every change.
pub type Snapshot = Occupancy;

/// A look inside a running emulator, and a way to break it.
#[derive(Debug, Clone)]
pub struct Probe {
    pub(crate) client: EngineClient,
    pub(crate) snapshots: watch::Receiver<Snapshot>,
    pub(crate) links: watch::Receiver<KvLink>,
}

impl Probe {
    /// What the engine has to do now.
    pub fn now(&self) -> Snapshot {
        *self.snapshots.borrow()
    }

    /// Waits until the engine is in a wanted state. Put a deadline around it.
    pub async fn until(&mut self, wanted: impl FnMut(&Snapshot) -> bool) -> Result<Snapshot, Died> {
        self.snapshots.wait_for(wanted).await.map(|snapshot| *snapshot).map_err(|_| Died::gone())
    }

    /// What is agreed with the host that moves KV; nothing, where KV moves otherwise.
    pub fn kv_link(&self) -> KvLink {
        *self.links.borrow()
    }

    /// Waits until the link is in a wanted state. Put a deadline around it.
    pub async fn until_kv_link(&mut self, wanted: impl FnMut(&KvLink) -> bool) -> Result<KvLink, Died> {
        self.links.wait_for(wanted).await.map(|link| *link).map_err(|_| Died::gone())
    }

    /// All counters.
    pub async fn report(&self) -> Result<Report, Died> {
        self.client.ask(Command::Report).await.map_err(|_| Died::gone())
    }

    /// Flips one bit of a block; false when there is no such byte.
    pub async fn flip_byte(&self, block: u32, offset: usize) -> Result<bool, Died> {
        self.client.ask(|reply| Command::FlipByte { block, offset, reply }).await.map_err(|_| Died::gone())
    }
}
