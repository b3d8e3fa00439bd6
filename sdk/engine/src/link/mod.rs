//! An engine's end of the link.

mod attach;
mod event;
mod host_process;
mod run;
mod session;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use attach::{AttachError, Engine, Settings, incarnation_now};
pub use event::{Event, LinkClosed};
pub use session::{SendError, Session};

use crate::slab::Slab;
use crate::transport::{Clock, Monotonic};
use run::Shared;

/// An engine that is attached, or on its way to be again. Dropping it says goodbye; holds and transfers end then.
#[derive(Debug)]
pub struct EngineLink {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl EngineLink {
    /// Attaches to the host that listens at `socket`, and gives the slab to it. Tries until it is there, for up to
    /// [`Settings::attach_ms`] and a last try, so that engine and host may start in any order.
    ///
    /// # Errors
    /// If the host refuses it for good, or was not there in time; the last failure.
    pub fn attach(
        socket: impl Into<PathBuf>,
        engine: Engine,
        slab: Arc<Slab>,
        settings: Settings,
    ) -> Result<(Self, Session), AttachError> {
        let clock: Arc<dyn Clock> = Arc::new(Monotonic::default());
        let shared = Arc::new(Shared::new(socket.into(), engine, slab, settings, clock));
        let first = shared.attach_first(settings.attach_ms)?;
        // Before anybody can drop this: what is said until then is sent, and then the goodbye.
        shared.enter(&first);
        let (running, session) = (Arc::clone(&shared), first.clone());
        let thread = std::thread::Builder::new()
            .name("sluice-link".to_owned())
            .spawn(move || running.run(first))
            .map_err(|cause| AttachError::System { step: "starting the link's thread", cause })?;
        Ok((Self { shared, thread: Some(thread) }, session))
    }

    /// The next event, or nothing within `wait`.
    ///
    /// Events are bounded by [`Settings::events`]: while that many wait, the link reads nothing, and a host that is not
    /// read for its `silence_ms` takes the engine for dead. So poll in a loop, from one thread.
    ///
    /// # Errors
    /// If the link is over for good and all events were taken.
    pub fn poll_event(&self, wait: Duration) -> Result<Option<Event>, LinkClosed> {
        self.shared.events.pop(wait).map_err(|_| LinkClosed)
    }
}

impl Drop for EngineLink {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // A panic there was told by the panic hook; there is nothing to undo.
            let _ = thread.join();
        }
    }
}
