//! The listener as its owner sees it.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use sluice_engine_sdk::transport::{Closed, Monotonic, Queue};

use super::accepting::{Hearer, Host};
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
        let events = Queue::new(settings.events);
        Self::start(path, settings, Hearer::Queue(events))
    }

    /// As [`LinkListener::bind`], with events handed to `hear`: those of one session in order, on a thread of that
    /// session, which reads nothing more meanwhile.
    ///
    /// # Errors
    /// As [`LinkListener::bind`].
    pub fn bind_to(
        path: &Path,
        settings: Settings,
        hear: Arc<dyn Fn(LinkEvent) + Send + Sync>,
    ) -> Result<Self, BindError> {
        Self::start(path, settings, Hearer::Call(hear))
    }

    fn start(path: &Path, settings: Settings, hearer: Hearer) -> Result<Self, BindError> {
        let settings = Settings { max_engines: settings.max_engines.min(MAX_ENGINES), ..settings };
        let host = Arc::new(Host {
            place: Place::take(path, !settings.other_uids.is_empty())?,
            hearer,
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
        match &self.host.hearer {
            Hearer::Queue(events) => events.pop(wait),
            // They are told elsewhere.
            Hearer::Call(_) => Ok(None),
        }
    }

    /// Events that wait to be taken.
    #[must_use]
    pub fn queued_events(&self) -> usize {
        match &self.host.hearer {
            Hearer::Queue(events) => events.len(),
            Hearer::Call(_) => 0,
        }
    }
}

impl Drop for LinkListener {
    fn drop(&mut self) {
        // Nobody takes events any more: readers that wait for room go on.
        if let Hearer::Queue(events) = &self.host.hearer {
            events.close();
        }
        self.host.registry.stop("the host is going away; the engine can go on and attach again");
        // Wakes up the accepting thread. There is no other way it can fail than being down already.
        let _ = shutdown(&self.host.place.socket, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A panic there was told by the panic hook; there is nothing to undo.
            let _ = thread.join();
        }
    }
}
