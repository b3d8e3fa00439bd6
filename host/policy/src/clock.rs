//! The one place of this crate that reads clocks: a deadline is about real time, not about an argument.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// CPU time that the calling thread has used.
pub(crate) fn thread_cpu() -> Duration {
    duration(clock_gettime(ClockId::ThreadCPUTime))
}

/// Time that never goes back; it has no relation to the wall clock's date.
pub(crate) fn monotonic() -> Duration {
    duration(clock_gettime(ClockId::Monotonic))
}

/// The wall clock, seconds since the Unix epoch, as files are stamped.
pub(crate) fn epoch_s() -> i64 {
    clock_gettime(ClockId::Realtime).tv_sec
}

/// The date, ms since the Unix epoch: for people, never for deadlines.
pub(crate) fn unix_ms() -> u64 {
    u64::try_from(duration(clock_gettime(ClockId::Realtime)).as_millis()).unwrap_or(u64::MAX)
}

fn duration(time: Timespec) -> Duration {
    // All of these count up from zero, so neither field is ever negative.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
