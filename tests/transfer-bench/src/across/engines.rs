//! Our side: a host in this process, and two engines that attach to it from theirs.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use sluice_engine_sdk::wire::Verb;
use sluice_transfer::fabric::ShmSettings;
use sluice_transfer::link::Settings;
use sluice_transfer::node::{Node, NodeEvent, NodeSettings};
use sluice_transfer::protocol::limits::Limits;
use tempfile::TempDir;

use super::Mover;
use super::engine::{DECODE, PREFILL};
use super::sequence::Sequence;
use super::speaker::Speaker;
use crate::copies::threads_of;

/// Engines go before their host, and that before the folder of its socket.
pub struct Engines {
    threads: usize,
    prefill: Speaker,
    decode: Speaker,
    transfers: u64,
    _node: Node,
    _folder: TempDir,
}

impl Engines {
    /// With slabs of so many bytes, and so many copy threads.
    pub fn start(slab_bytes: u64, threads: usize) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("kv.sock");
        let settings = NodeSettings {
            socket: socket.clone(),
            link: Settings::default(),
            limits: Limits::default(),
            shm: ShmSettings { threads, ..ShmSettings::default() },
        };
        let began = Instant::now();
        let clock = Arc::new(move || began.elapsed().as_millis() as u64);
        let node = Node::start(settings, clock, Arc::new(tell))?;
        let itself = std::env::current_exe().context("where this program is")?;
        let start = |name: &str| {
            let mut command = Command::new(&itself);
            command.arg("engine").arg(&socket).arg(name).arg(slab_bytes.to_string());
            Speaker::start(&format!("engine {name}"), command).map(|(speaker, _)| speaker)
        };
        let (prefill, decode) = (start(PREFILL)?, start(DECODE)?);
        Ok(Self { threads, prefill, decode, transfers: 0, _node: node, _folder: folder })
    }

    fn transfer(&mut self, verb: Verb, sequence: Sequence) -> anyhow::Result<Duration> {
        self.transfers += 1;
        let id = self.transfers;
        self.prefill.order(&format!("hold {id} {sequence}"))?;
        let word = if verb == Verb::Write { "write" } else { "read" };
        self.decode.timed(&format!("{word} {id} {sequence}"))
    }
}

impl Mover for Engines {
    fn title(&self) -> String {
        format!("sluice, {} to copy", threads_of(self.threads))
    }

    fn turn(&mut self, verb: Verb, sequence: Sequence, repeats: u32) -> anyhow::Result<Duration> {
        let mut took = Duration::ZERO;
        for _ in 0..repeats {
            took += self.transfer(verb, sequence)?;
        }
        Ok(took / repeats)
    }

    fn check(&mut self, verb: Verb, sequence: Sequence) -> anyhow::Result<()> {
        self.decode.order("wipe")?;
        self.transfer(verb, sequence)?;
        self.decode.order(&format!("check {sequence}"))
    }
}

/// That engines come and go is no news here: one that goes too early is missed by who speaks to it.
fn tell(event: NodeEvent) {
    if !matches!(event, NodeEvent::Attached(_) | NodeEvent::Detached { .. }) {
        eprintln!("host: {event:?}");
    }
}
