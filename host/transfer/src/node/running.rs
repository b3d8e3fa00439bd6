//! Starting and stopping a node.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use super::engines::Engines;
use super::event::NodeEvent;
use super::handle::NodeHandle;
use super::hearing::Hearing;
use super::holds::Holds;
use crate::exchange::{Clock, Exchange, Running, StartError, StopError};
use crate::fabric::{self, ShmFabric, ShmSettings};
use crate::link::{BindError, LinkListener, Settings};
use crate::protocol::limits::Limits;

/// How long the thread that hears waits before it looks whether it is to stop, in milliseconds.
const LOOK_MS: u64 = 100;

/// How a node is run.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Where engines attach.
    pub socket: PathBuf,
    /// How engines are treated.
    pub link: Settings,
    /// Of each engine.
    pub limits: Limits,
    /// How blocks are copied.
    pub shm: ShmSettings,
}

/// A node that runs until this is dropped.
pub struct Node {
    handle: NodeHandle,
    exchange: Option<Running>,
    listener: Arc<LinkListener>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Why there is no node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Nothing listens.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Nothing copies.
    #[error(transparent)]
    Fabric(#[from] fabric::StartError),
    /// Nothing decides.
    #[error(transparent)]
    Exchange(#[from] StartError),
    /// Nothing hears.
    #[error("the thread that hears engines could not be started: {0}")]
    Thread(#[from] io::Error),
}

impl Node {
    /// Starts one. `tell` is called by its thread, and must not block for long.
    ///
    /// # Errors
    /// If the place of the socket is taken or not safe, a setting cannot be, or the system has no thread.
    pub fn start(
        settings: NodeSettings,
        clock: Clock,
        tell: Arc<dyn Fn(NodeEvent) + Send + Sync>,
    ) -> Result<Self, NodeError> {
        let listener = Arc::new(LinkListener::bind(&settings.socket, settings.link)?);
        let fabric = Arc::new(ShmFabric::start(settings.shm)?);
        let exchange = Exchange::start(fabric, settings.limits, clock)?;
        let handle = NodeHandle {
            exchange: exchange.handle().clone(),
            engines: Arc::new(RwLock::new(Engines::default())),
            holds: Arc::new(Holds::default()),
        };
        let hearing = Hearing { node: handle.clone(), tell };
        let stopping = Arc::new(AtomicBool::new(false));
        let (from, stops) = (Arc::clone(&listener), Arc::clone(&stopping));
        let thread = std::thread::Builder::new().name("kv-node".to_owned()).spawn(move || {
            while !stops.load(Ordering::Acquire) {
                match from.next_event(Duration::from_millis(LOOK_MS)) {
                    Ok(Some(event)) => hearing.hear(event),
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
        })?;
        Ok(Self { handle, exchange: Some(exchange), listener, stopping, thread: Some(thread) })
    }

    /// A way to it.
    #[must_use]
    pub fn handle(&self) -> &NodeHandle {
        &self.handle
    }

    /// Ends every transfer, tells every engine, and stops.
    ///
    /// # Errors
    /// If copies would not end.
    pub fn stop(mut self) -> Result<(), StopError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), StopError> {
        let Some(exchange) = self.exchange.take() else { return Ok(()) };
        let stopped = exchange.stop();
        self.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic there was told by the panic hook; there is nothing to undo.
            let _ = thread.join();
        }
        stopped
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Whoever wants to know how it went calls `stop`.
        let _ = self.end();
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = self.listener.queued_events();
        out.debug_struct("Node")
            .field("handle", &self.handle)
            .field("queued", &queued)
            .finish_non_exhaustive()
    }
}
