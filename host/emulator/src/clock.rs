//! The emulator's clocks: one reading of each at the start, then tokio's.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Time since the start, and what it was then elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
    unix_at_start: Duration,
    monotonic_at_start: Duration,
}

impl Clock {
    #[allow(clippy::disallowed_methods, reason = "the one place where this process reads the wall clock")]
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), unix_at_start: unix, monotonic_at_start: monotonic() }
    }

    /// Since the start.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// A time since the start as a tokio instant.
    pub fn instant(&self, at: Duration) -> Instant {
        self.started + at.min(FAR)
    }

    /// Wall clock, seconds since the Unix epoch.
    pub fn unix_s(&self) -> u64 {
        (self.unix_at_start + self.now()).as_secs()
    }

    /// When it started on the wall clock, seconds since the Unix epoch.
    pub fn started_s(&self) -> f64 {
        self.unix_at_start.as_secs_f64()
    }

    /// A time since the start on the monotonic clock that all processes of this machine share, seconds. It is the
    /// `perf_counter` in which vLLM states the end of a decode hold.
    pub fn machine_s(&self, at: Duration) -> f64 {
        (self.monotonic_at_start + at.min(FAR)).as_secs_f64()
    }
}

/// Beyond any run; instants further out may not exist.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

fn monotonic() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(time).unwrap_or_default()
}
