//! The listener as its owner sees it.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use sluice_engine_sdk::transport::{Closed, Monotonic, Queue};

use super::accepting::Host;
use super::event::LinkEvent;
use super::place::{BindError, Place};
use super::registry::Registry;
use super::settings::{MAX_ENGINES, Settings};

/// Listens for engines. Dropping it says goodbye to all of them, and ends when their threads have.
#[derive(Debug)]
pub struct LinkListener {
    host: Arc<Host>,
    thread: Option<JoinHandle<()>>,
}

impl LinkListener {
    /// Listens at `path`, in a folder that nobody else may write; a stale socket there is removed.
    ///
    /// # Errors
    /// If somebody listens there, or the place is not safe.
    pub fn bind(path: &Path, settings: Settings) -> Result<Self, BindError> {
        let settings = Settings { max_engines: settings.max_engines.min(MAX_ENGINES), ..settings };
        let host = Arc::new(Host {
            place: Place::take(path, !settings.other_uids.is_empty())?,
            events: Queue::new(settings.events),
            registry: Registry::default(),
            clock: Arc::new(Monotonic::default()),
            settings,
        });
        let accepting = Arc::clone(&host);
        let thread = std::thread::Builder::new()
            .name("kv-link-accept".to_owned())
            .spawn(move || accepting.accept_all())
            .map_err(|cause| BindError::System {
                path: path.to_owned(),
                step: "starting a thread for",
                cause,
            })?;
        Ok(Self { host, thread: Some(thread) })
    }

    /// The next event, or nothing within `wait`.
    ///
    /// # Errors
    /// If the listener has stopped.
    pub fn next_event(&self, wait: Duration) -> Result<Option<LinkEvent>, Closed> {
        self.host.events.pop(wait)
    }

    /// Events that wait to be taken.
    #[must_use]
    pub fn queued_events(&self) -> usize {
        self.host.events.len()
    }
}

impl Drop for LinkListener {
    fn drop(&mut self) {
        // Nobody takes events any more: readers that wait for room go on.
        self.host.events.close();
        self.host.registry.stop("the host is going away; the engine can go on and attach again");
        // Wakes up the accepting thread. There is no other way it can fail than being down already.
        let _ = shutdown(&self.host.place.socket, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A panic there was told by the panic hook; there is nothing to undo.
            let _ = thread.join();
        }
    }
}
