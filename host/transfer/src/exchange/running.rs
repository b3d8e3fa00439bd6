//! The thread of an exchange.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::endpoints::HostFabric;
use super::handle::Handle;
use super::limits::{CLOSE_AGAIN_MS, STOP_MS};
use super::stepping::{Exchange, Rest};
use crate::protocol::limits::Limits;

/// Milliseconds of a clock that never steps back.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// An exchange with a thread of its own. It stops when this is dropped.
pub struct Running {
    handle: Handle,
    thread: Option<JoinHandle<bool>>,
}

/// Says that its thread panics.
struct Telling(Box<dyn Fn() + Send>);

impl Drop for Telling {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// There is no thread for it.
#[derive(Debug, thiserror::Error)]
#[error("the thread of the KV exchange could not be started: {0}")]
pub struct StartError(#[from] io::Error);

/// An exchange that stopped otherwise than it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// Copies were still under way. Their slabs stay mapped until they end.
    #[error("KV was still being copied {STOP_MS} ms after the exchange was told to stop")]
    StillCopying,
    /// Its thread panicked, and said why.
    #[error("the thread of the KV exchange panicked")]
    Panicked,
}

impl Exchange {
    /// Starts one, with a thread.
    ///
    /// # Errors
    /// If the system has no thread.
    pub fn start(fabric: Arc<dyn HostFabric>, limits: Limits, clock: Clock) -> Result<Running, StartError> {
        Self::start_telling(fabric, limits, clock, Box::new(|| {}))
    }

    /// As [`Exchange::start`], and `failed` is called by the thread should it panic: nothing is moved any more then.
    ///
    /// # Errors
    /// If the system has no thread.
    pub fn start_telling(
        fabric: Arc<dyn HostFabric>,
        limits: Limits,
        clock: Clock,
        failed: Box<dyn Fn() + Send>,
    ) -> Result<Running, StartError> {
        let (exchange, handle) = Self::new(fabric, limits);
        let thread = std::thread::Builder::new().name("kv-exchange".to_owned());
        let thread = thread.spawn(move || {
            let _telling = Telling(failed);
            exchange.run(&*clock)
        })?;
        Ok(Running { handle, thread: Some(thread) })
    }

    /// Until it is told to stop; whether all engines had left by then.
    fn run(mut self, clock: &(dyn Fn() -> u64 + Send + Sync)) -> bool {
        loop {
            let Rest { rest_ms, stopped } = self.step(clock());
            if stopped {
                return true;
            }
            if self.is_stopping() {
                return self.wind_down(clock);
            }
            self.rest(rest_ms);
        }
    }

    /// The bound is counted in waits, so that it holds whatever the clock says.
    fn wind_down(&mut self, clock: &(dyn Fn() -> u64 + Send + Sync)) -> bool {
        let mut waits = 0;
        while waits < STOP_MS / CLOSE_AGAIN_MS {
            if self.step(clock()).stopped {
                return true;
            }
            waits += u64::from(self.rest(CLOSE_AGAIN_MS));
        }
        false
    }
}

impl Running {
    /// A way to it.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Obeys the commands that wait, ends every transfer, lets every engine go, and stops: within [`STOP_MS`].
    ///
    /// # Errors
    /// If copies would not end, or the thread had panicked.
    pub fn stop(mut self) -> Result<(), StopError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), StopError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.handle.stop();
        match thread.join() {
            Ok(true) => Ok(()),
            Ok(false) => Err(StopError::StillCopying),
            Err(_) => Err(StopError::Panicked),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Whoever wants to know how it went calls `stop`.
        let _ = self.join();
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Running").field("handle", &self.handle).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::fabric::{Fault, LocalFabric};

    #[test]
    fn a_thread_that_panics_says_so() {
        let (say, said) = channel();
        let clock: Clock = Arc::new(|| panic!("a defect"));
        let fabric = Arc::new(LocalFabric::new(|_| Fault::None));
        let failed = Box::new(move || {
            let _ = say.send(());
        });
        let running = Exchange::start_telling(fabric, Limits::default(), clock, failed).unwrap();
        assert_eq!(said.recv_timeout(Duration::from_secs(60)), Ok(()));
        assert_eq!(running.stop(), Err(StopError::Panicked));
    }
}
