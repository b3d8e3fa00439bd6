//! Files dropped one after another, each when the one before decides.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use sha2::{Digest, Sha256};
use sluice_harness::{Client, Fleet, HarnessError, PolicyFile, host};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use crate::POLICY;

/// Between two looks at what is in force: the resolution of the drop-to-live times.
const LOOK_EVERY: Duration = Duration::from_millis(4);

/// Until a dropped file must decide; one that does not is a failed run.
const LIVE_WITHIN: Duration = Duration::from_secs(10);

/// What is in force, as last seen. Looked at all the time, in windows without swaps too, so that looking costs both
/// the same.
#[derive(Debug)]
pub struct InForce {
    seen: watch::Receiver<Set>,
    _looking: JoinSet<()>,
}

/// A policy set.
#[derive(Debug, Clone)]
struct Set {
    generation: u64,
    digest: String,
}

impl InForce {
    /// Looks from now on.
    pub async fn watched(admin: &Client) -> Result<Arc<Self>, HarnessError> {
        let (sender, seen) = watch::channel(look(admin).await?);
        let mut looking = JoinSet::new();
        let admin = admin.clone();
        looking.spawn(async move {
            let mut ticks = interval(LOOK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if let Ok(set) = look(&admin).await {
                    sender.send_replace(set);
                }
            }
        });
        Ok(Arc::new(Self { seen, _looking: looking }))
    }

    /// Number of the set last seen in force.
    pub fn generation(&self) -> u64 {
        self.seen.borrow().generation
    }

    async fn until_decides(&self, digest: &str) -> anyhow::Result<()> {
        self.seen.clone().wait_for(|set| set.digest == digest).await.context("nobody looks")?;
        Ok(())
    }
}

async fn look(admin: &Client) -> Result<Set, HarnessError> {
    let policies = host::policies(admin).await?;
    let digest = policies.named(POLICY).and_then(|policy| policy.digest.clone()).unwrap_or_default();
    Ok(Set { generation: policies.generation, digest })
}

/// Drops two policies in turn, and notes how soon they decide.
pub struct Drops<'a> {
    fleet: &'a Fleet,
    in_force: &'a InForce,
    files: &'a [PolicyFile; 2],
    every: Duration,
    mark: u32,
    /// Of each file, from its drop.
    pub live_after: Vec<Duration>,
}

impl<'a> Drops<'a> {
    /// None yet; there will be at least `every` between two.
    pub fn new(fleet: &'a Fleet, in_force: &'a InForce, files: &'a [PolicyFile; 2], every: Duration) -> Self {
        Self { fleet, in_force, files, every, mark: 0, live_after: Vec::new() }
    }

    /// The admin listener of the host.
    pub fn admin(&self) -> &'a Client {
        self.fleet.host.admin()
    }

    /// Drops files until there were `count`, or a while is over; says how many there were. All of them decide by then,
    /// or did.
    pub async fn some(&mut self, count: u32, during: Duration) -> anyhow::Result<u32> {
        let began = Instant::now();
        let mut dropped = 0;
        while dropped < count && began.elapsed() < during {
            let next = Instant::now() + self.every;
            self.one().await?;
            dropped += 1;
            sleep_until(next).await;
        }
        Ok(dropped)
    }

    /// A file that the host has never seen: a mark in it makes its digest unique.
    async fn one(&mut self) -> anyhow::Result<()> {
        self.mark += 1;
        let file = self.files[self.mark as usize % self.files.len()].clone().marked(self.mark);
        let digest = hexadecimal(&Sha256::digest(&file.wasm));
        let dropped = Instant::now();
        self.fleet.host.drop_policy(&file)?;
        timeout(LIVE_WITHIN, self.in_force.until_decides(&digest)).await.with_context(|| {
            format!("file {} did not decide within {} s of its drop", self.mark, LIVE_WITHIN.as_secs())
        })??;
        self.live_after.push(dropped.elapsed());
        Ok(())
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
