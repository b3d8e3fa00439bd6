//! The engines of a soak: emulators behind fronts that spoil some legs, killed and started again in turn.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use sluice_harness::{Emulator, EmulatorPlan};
use tempfile::TempDir;

use crate::faulty_engine::FaultyEngine;

/// One engine, whichever process it is now.
#[derive(Debug)]
struct Engine {
    name: String,
    plan: EmulatorPlan,
    emulator: Emulator,
    front: FaultyEngine,
}

/// All engines.
#[derive(Debug)]
pub struct Engines {
    engines: Vec<Engine>,
    folder: TempDir,
    restarts: usize,
}

impl Engines {
    /// So many of each role; the seed says which legs are spoilt.
    pub async fn start(of_each_role: usize, arguments: &str, seed: u64) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("sluice-soak-")?;
        let mut engines = Vec::new();
        for role in ["prefill", "decode"] {
            for number in 0..of_each_role {
                let (name, plan) = (format!("{role}-{number}"), EmulatorPlan::fast(role).with(arguments));
                let emulator = Emulator::start(&name, &plan, folder.path()).await?;
                let engine_seed = seed.wrapping_mul(1_009).wrapping_add(engines.len() as u64);
                let front = FaultyEngine::start(address(&emulator)?, engine_seed).await?;
                engines.push(Engine { name, plan, emulator, front });
            }
        }
        Ok(Self { engines, folder, restarts: 0 })
    }

    /// Role and address of each, as a router sees them.
    pub fn addresses(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        self.engines.iter().map(|engine| (engine.plan.role, engine.front.address()))
    }

    /// Kills the next engine in turn. It stays dead until [`Engines::revive`].
    pub async fn kill_next(&mut self) -> anyhow::Result<()> {
        let next = self.restarts % self.engines.len();
        self.restarts += 1;
        Ok(self.engines[next].emulator.process().kill().await?)
    }

    /// Starts the engine anew that was killed last.
    pub async fn revive(&mut self) -> anyhow::Result<()> {
        let last = self.restarts.saturating_sub(1) % self.engines.len();
        let engine = &mut self.engines[last];
        engine.emulator = Emulator::start(&engine.name, &engine.plan, self.folder.path()).await?;
        engine.front.moved_to(address(&engine.emulator)?);
        Ok(())
    }

    /// How often an engine was killed.
    pub fn restarts(&self) -> usize {
        self.restarts
    }

    /// Legs spoilt so far.
    pub fn faults(&self) -> u64 {
        self.engines.iter().map(|engine| engine.front.faults()).sum()
    }

    /// Waits until no engine runs or holds anything; names those that still do.
    pub async fn still_busy(&self, within: Duration) -> Vec<String> {
        let mut busy = Vec::new();
        for engine in &self.engines {
            if let Err(error) = engine.emulator.until_idle(within).await {
                busy.push(format!("{}: {error}", engine.name));
            }
        }
        busy
    }
}

fn address(emulator: &Emulator) -> anyhow::Result<SocketAddr> {
    emulator.url().trim_start_matches("http://").parse().context("an emulator's address")
}
