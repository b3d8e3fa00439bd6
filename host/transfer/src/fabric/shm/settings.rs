//! How a fabric is started.

use std::io;

/// The most copy threads: more than any host's memory can feed.
const MAX_THREADS: usize = 64;
/// The most posts that can be asked for: their copies are up to 24 MB each.
const MAX_POSTS: usize = 65_536;

/// How a fabric is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShmSettings {
    /// Copy threads, 1 to 64. Two fill most hosts' memory links.
    pub threads: usize,
    /// Posts under way or ended and not polled, 1 to 65,536; one more is refused.
    pub max_posts: usize,
    /// A post of so many bytes or more is copied past the caches. From 8 MiB on that was as fast on a host with
    /// 32 MiB of cache even when the same bytes were copied again and again, and 1.4 times as fast from 16 MiB on.
    pub streamed_from_bytes: u64,
}

impl Default for ShmSettings {
    fn default() -> Self {
        Self { threads: 2, max_posts: 1_024, streamed_from_bytes: 8 << 20 }
    }
}

impl ShmSettings {
    pub(super) fn check(&self) -> Result<(), StartError> {
        let limits = [("threads", self.threads, MAX_THREADS), ("max_posts", self.max_posts, MAX_POSTS)];
        let beyond = limits.into_iter().find(|(_, value, limit)| !(1..=*limit).contains(value));
        match beyond {
            Some((setting, value, limit)) => Err(StartError::Setting { setting, value, limit }),
            None => Ok(()),
        }
    }
}

/// Why a fabric does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting that cannot be.
    #[error("{setting} is {value}: must be 1 to {limit}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// Given.
        value: usize,
        /// At most.
        limit: usize,
    },
    /// The system has no thread for it.
    #[error("copy thread {number} could not be started: {cause}")]
    Thread {
        /// Which.
        number: usize,
        /// What the system said.
        cause: io::Error,
    },
}
