//! A node in this process, and what it told.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_engine_sdk::transport::{Clock, Monotonic};
use sluice_transfer::exchange::Figures;
use sluice_transfer::fabric::ShmSettings;
use sluice_transfer::link::Settings;
use sluice_transfer::node::{Node, NodeEvent, NodeSettings};
use sluice_transfer::protocol::limits::Limits;

use super::engine::FAR;

pub struct World {
    pub node: Node,
    pub socket: PathBuf,
    /// Added to the node's time.
    pub skipped_ms: Arc<AtomicU64>,
    events: Mutex<Receiver<NodeEvent>>,
    _folder: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("kv.sock");
        let settings = NodeSettings {
            socket: socket.clone(),
            link: Settings::default(),
            limits: Limits::default(),
            shm: ShmSettings::default(),
        };
        let (tell, events) = channel();
        let tell = Arc::new(move |event| drop(tell.send(event)));
        let time = Monotonic::default();
        let skipped_ms = Arc::new(AtomicU64::new(0));
        let skips = Arc::clone(&skipped_ms);
        let clock = Arc::new(move || time.now_ms() + skips.load(Ordering::Relaxed));
        let node = Node::start(settings, clock, tell).unwrap();
        Self { node, socket, skipped_ms, events: Mutex::new(events), _folder: folder }
    }

    pub fn event(&self) -> NodeEvent {
        self.events.lock().unwrap().recv_timeout(FAR).expect("an event within a minute")
    }

    /// Waits until the exchange has let go of everybody.
    pub fn until_nobody_is_attached(&self) -> Figures {
        for _ in 0..60_000 {
            let figures = self.node.handle().figures();
            if figures.engines == 0 && self.node.handle().holds() == 0 {
                return figures;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        panic!("{:?}", self.node.handle().figures());
    }

    /// Waits until an engine is attached.
    pub fn until_attached(&self, name: &str) {
        loop {
            match self.event() {
                NodeEvent::Attached(engine) if engine.name == name => return,
                NodeEvent::Attached(_) | NodeEvent::Detached { .. } => {}
                NodeEvent::Invalid { .. } => {}
                // It comes again.
                NodeEvent::Refused { text, .. } if text.contains("attach again in a while") => {}
                other => panic!("{other:?}"),
            }
        }
    }
}
