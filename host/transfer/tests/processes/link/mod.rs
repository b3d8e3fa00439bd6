//! The KV link between real processes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod attaching;
mod bounds;
mod deaths;
mod lies;
mod places;
mod raw;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sluice_engine_sdk::wire::{
    Element, Extent, Frame, HeadOrder, KvLayout, MAX_BLOCKS, Order, Planes, Rank, Role, ToHost, TransferId,
};
use sluice_engine_sdk::{Engine, EngineLink, Event, Slab};
use sluice_transfer::link::{Attached, LinkEvent, LinkListener, Settings};

/// Far beyond what anything here takes: it ends a test that is stuck, and decides nothing.
pub const FAR: Duration = Duration::from_secs(60);

pub const LAYOUT: KvLayout = KvLayout {
    blocks: 8,
    block_tokens: 4,
    layers: 2,
    planes: Planes::KeyValue,
    kv_heads: 1,
    head_dim: 64,
    element: Element::Bf16,
    tp_size: 2,
    order: Order::BlockLayerPlane,
    head_order: HeadOrder::HeadsOutermost,
};
pub const BLOCK_BYTES: u64 = 2 * 2 * 4 * 64 * 2;
pub const SLAB_BYTES: u64 = 8 * BLOCK_BYTES;

/// A listener in a folder of its own.
pub struct Host {
    pub listener: LinkListener,
    pub socket: PathBuf,
    _folder: Option<tempfile::TempDir>,
}

impl Host {
    pub fn new(settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("kv.sock");
        let listener = LinkListener::bind(&socket, settings).unwrap();
        Self { listener, socket, _folder: Some(folder) }
    }

    pub fn event(&self) -> LinkEvent {
        self.listener.next_event(FAR).unwrap().expect("an event within a minute")
    }

    pub fn attached(&self) -> Box<Attached> {
        match self.event() {
            LinkEvent::Attached(attached) => attached,
            other => panic!("{other:?} is no attach"),
        }
    }

    pub fn said(&self) -> ToHost {
        match self.event() {
            LinkEvent::Said { message, .. } => message,
            other => panic!("{other:?} is no message"),
        }
    }
}

/// An engine's end in this process.
pub fn engine(id: u128) -> Engine {
    Engine {
        name: format!("engine-{id}"),
        incarnation: 100,
        rank: Rank(0),
        role: Role::Prefill,
        model: "test".to_owned(),
        layout: LAYOUT,
    }
}

pub fn slab() -> Arc<Slab> {
    Arc::new(Slab::create(SLAB_BYTES).unwrap())
}

/// As patient as a test can be told to wait, and quick to give up a first attach that is refused.
pub fn quick() -> sluice_engine_sdk::Settings {
    sluice_engine_sdk::Settings { attach_ms: 50, ..sluice_engine_sdk::Settings::default() }
}

pub fn engine_event(link: &EngineLink) -> Event {
    link.poll_event(FAR).unwrap().expect("an event within a minute")
}

/// Another process, which ends with the test.
pub struct Peer {
    pub child: Child,
    lines: BufReader<ChildStdout>,
}

impl Peer {
    pub fn new(role: &str, socket: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_link-peer"));
        command.arg(role).arg(socket).args(more).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the peer starts");
        let lines = BufReader::new(child.stdout.take().expect("its output is piped"));
        Self { child, lines }
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("the peer speaks");
        line.trim_end().to_owned()
    }

    /// As the kernel kills.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A message that can be told from others.
pub fn numbered(number: u128) -> Frame<ToHost> {
    Frame::Message(ToHost::Renew { id: TransferId(number) })
}

pub fn whole() -> Extent {
    Extent { first_token: 0, end_token: MAX_BLOCKS as u32, position_tokens: 1 }
}
