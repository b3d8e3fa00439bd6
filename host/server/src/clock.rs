//! Time as an argument: nothing else in this crate reads the system's clocks. (Deadlines of waits are tokio's own
//! instants, which tests can pause.)

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where the host gets its time from.
pub trait Clock: Send + Sync + 'static {
    /// Wall clock, milliseconds since the Unix epoch. May step; never used to measure.
    fn wall_ms(&self) -> u64;
    /// Time since some fixed moment. Never steps back.
    fn elapsed(&self) -> Duration;
}

/// Whole milliseconds of a time, as sessions keep them.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// How much time there was before this process: what was saved by one before it happened then. Longer than a session may
/// idle.
const BEFORE_THE_START: Duration = Duration::from_hours(8 * 24);

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose `elapsed` has so much behind it already.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the monotonic clock")]
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self { start: Instant::now() })
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
    fn wall_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }

    fn elapsed(&self) -> Duration {
        BEFORE_THE_START + self.start.elapsed()
    }
}
