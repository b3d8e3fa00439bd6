//! Starting and stopping a node.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use super::engines::Engines;
use super::event::NodeEvent;
use super::handle::NodeHandle;
use super::hearing::Hearing;
use super::holds::Holds;
use crate::exchange::{Clock, Exchange, Running, StartError, StopError};
use crate::fabric::{self, ShmFabric, ShmSettings};
use crate::link::{BindError, LinkListener, Settings};
use crate::protocol::limits::Limits;

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
    listener: Option<LinkListener>,
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
}

impl Node {
    /// Starts one. `tell` is called by the threads of engines, and must not block for long.
    ///
    /// # Errors
    /// If the place of the socket is taken or not safe, a setting cannot be, or the system has no thread.
    pub fn start(
        settings: NodeSettings,
        clock: Clock,
        tell: Arc<dyn Fn(NodeEvent) + Send + Sync>,
    ) -> Result<Self, NodeError> {
        let fabric = Arc::new(ShmFabric::start(settings.shm)?);
        let stopped = Arc::clone(&tell);
        let failed = Box::new(move || stopped(NodeEvent::Stopped));
        let exchange = Exchange::start_telling(fabric, settings.limits, clock, failed)?;
        let handle = NodeHandle {
            exchange: exchange.handle().clone(),
            engines: Arc::new(RwLock::new(Engines::default())),
            holds: Arc::new(Holds::default()),
            attempts: Arc::default(),
        };
        let hearing = Hearing { node: handle.clone(), tell };
        let hear = Arc::new(move |event| hearing.hear(event));
        let listener = LinkListener::bind_to(&settings.socket, settings.link, hear)?;
        Ok(Self { handle, exchange: Some(exchange), listener: Some(listener) })
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
        // Engines that were not told by the exchange are told by this.
        drop(self.listener.take());
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
        out.debug_struct("Node").field("handle", &self.handle).finish_non_exhaustive()
    }
}
