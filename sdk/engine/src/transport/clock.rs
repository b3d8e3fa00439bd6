//! Time, as milliseconds that never go back.

use std::time::Instant;

/// Where a link reads the time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Milliseconds since some moment.
    fn now_ms(&self) -> u64;
}

/// The system's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Monotonic(Instant);

impl Default for Monotonic {
    #[expect(clippy::disallowed_methods, reason = "the one place of a link that reads the clock")]
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now_ms(&self) -> u64 {
        self.0.elapsed().as_millis() as u64
    }
}
