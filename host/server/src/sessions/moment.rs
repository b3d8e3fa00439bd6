//! How long ago something was, told by another process.
//!
//! The wall clock may be set meanwhile, by hours. The machine's own time since it was started does not step, but is of that start
//! alone. So both are written down, with the start that the second is of.

use std::fs;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Another for each start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Containers may have a time of their own since the start.
const TIME_NAMESPACE: &str = "/proc/self/ns/time";

/// A moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Which start of which machine; `None` where that is not told.
    pub machine: Option<String>,
    /// Since that start, in milliseconds; sleep counts.
    pub up_ms: u64,
    /// Since the Unix epoch, in milliseconds.
    pub wall_ms: u64,
}

/// Time between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Away {
    /// In milliseconds, by a clock that does not step.
    Exactly(u64),
    /// In milliseconds, by the wall clock, which may have been set.
    About(u64),
}

impl Moment {
    /// Now, on this machine.
    pub fn now(wall_ms: u64) -> Self {
        let boot = fs::read_to_string(BOOT_ID).ok().map(|id| id.trim().to_owned());
        let namespace = fs::read_link(TIME_NAMESPACE).map(|of| of.display().to_string()).unwrap_or_default();
        let up = clock_gettime(ClockId::Boottime);
        let up_ms = u64::try_from(up.tv_sec).unwrap_or(0).saturating_mul(1_000)
            + u64::try_from(up.tv_nsec).unwrap_or(0) / 1_000_000;
        let machine = boot.filter(|boot| !boot.is_empty()).map(|boot| format!("{boot} {namespace}"));
        Self { machine, up_ms, wall_ms }
    }

    /// How long ago another was.
    pub fn since(&self, other: &Self) -> Away {
        match self.up_ms.checked_sub(other.up_ms) {
            Some(ms) if self.machine.is_some() && self.machine == other.machine => Away::Exactly(ms),
            _ => Away::About(self.wall_ms.saturating_sub(other.wall_ms)),
        }
    }
}

impl Away {
    /// In milliseconds.
    pub fn ms(self) -> u64 {
        match self {
            Self::Exactly(ms) | Self::About(ms) => ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_start_of_a_machine_tells_exactly() {
        let moment = |machine: Option<&str>, up_ms, wall_ms| Moment {
            machine: machine.map(str::to_owned),
            up_ms,
            wall_ms,
        };
        let saved = moment(Some("a"), 1_000, 50_000);
        for (now, expected) in [
            // The wall clock was set back, and forth.
            (moment(Some("a"), 3_000, 10_000), Away::Exactly(2_000)),
            (moment(Some("a"), 3_000, 90_000), Away::Exactly(2_000)),
            (moment(Some("b"), 3_000, 90_000), Away::About(40_000)),
            (moment(Some("b"), 3_000, 10_000), Away::About(0)),
            (moment(Some("a"), 900, 51_000), Away::About(1_000)),
            (moment(None, 3_000, 51_000), Away::About(1_000)),
        ] {
            assert_eq!(now.since(&saved), expected, "{now:?}");
        }
        let nameless = moment(None, 1, 1);
        assert_eq!(nameless.since(&nameless), Away::About(0));
    }

    #[test]
    fn this_machine_knows_its_start() {
        let (one, other) = (Moment::now(0), Moment::now(0));
        assert!(one.up_ms > 0 && matches!(other.since(&one), Away::Exactly(_)), "{one:?}");
    }
}
