//! Long work on bytes, off the event loops: while it lasts, no other request of its data thread would move.

use std::future::pending;
use std::panic::resume_unwind;
use std::time::Duration;

use thiserror::Error;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::http::error::ApiError;

/// Bytes from which reading JSON counts as long. A prompt is crossed at memory speed, but a text made of brackets
/// takes some nanoseconds for each byte, which is long for the longest body taken by default, 16 MiB.
pub const LONG_FROM_BYTES: usize = 256 * 1024;

/// Longest wait for such work to be done. It waits for a thread, of which there are hundreds, and for a CPU; the work on
/// the longest body takes a fraction of a second. A host that has no CPU for it in this time is overrun: its client is told
/// to come back rather than kept for as long as a request may take.
const DONE_WITHIN: Duration = Duration::from_secs(10);

/// Work that was not done in its time: this host is short of CPUs or of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this host did not come to reading {bytes} bytes within {} ms: it has more work than CPUs", within.as_millis())]
pub struct Undone {
    bytes: usize,
    within: Duration,
}

impl From<Undone> for ApiError {
    fn from(undone: Undone) -> Self {
        Self::host_short(undone.to_string())
    }
}

/// Whether work on so many bytes is done at once.
pub fn is_short(bytes: usize) -> bool {
    bytes < LONG_FROM_BYTES
}

/// Does work on so many bytes, elsewhere if that may take long.
pub async fn run<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Undone> {
    run_within(DONE_WITHIN, bytes, work).await
}

/// Does work on so many bytes that nobody waits for: at once, or elsewhere if that may take long. Work that the end of the host
/// overtakes is dropped undone.
pub fn aside(bytes: usize, work: impl FnOnce() + Send + 'static) {
    if is_short(bytes) {
        return work();
    }
    // What is left out is its handle: it is not waited for.
    drop(spawn_blocking(work));
}

async fn run_within<T: Send + 'static>(
    within: Duration,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Undone> {
    if is_short(bytes) {
        return Ok(work());
    }
    let mut working = spawn_blocking(work);
    match timeout(within, &mut working).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The host ends, and this request with it.
            Err(_) => pending().await,
        },
        Err(_) => {
            // What has not begun is not done for nobody.
            working.abort();
            Err(Undone { bytes, within })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::error::Blame;

    #[tokio::test]
    async fn long_work_leaves_its_thread_free() {
        let here = std::thread::current().id();
        for (bytes, stays) in [(LONG_FROM_BYTES - 1, true), (LONG_FROM_BYTES, false)] {
            let there = run(bytes, || std::thread::current().id()).await;
            assert_eq!(there.map(|there| there == here), Ok(stays), "{bytes}");
        }
    }

    #[tokio::test]
    async fn long_work_that_nobody_waits_for_leaves_its_thread_free() {
        let here = std::thread::current().id();
        for (bytes, stays) in [(LONG_FROM_BYTES - 1, true), (LONG_FROM_BYTES, false)] {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            aside(bytes, move || sender.send(std::thread::current().id()).expect("it is waited for"));
            assert_eq!(receiver.await.map(|there| there == here), Ok(stays), "{bytes}");
        }
    }

    /// Work that does not come to an end is this host's shortage, told as that.
    #[tokio::test]
    async fn work_is_waited_for_within_bounds() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let undone = run_within(Duration::ZERO, LONG_FROM_BYTES, move || ended.recv()).await;
        let error = ApiError::from(undone.expect_err("it cannot be done yet"));
        assert_eq!((error.status.as_u16(), error.code, error.blame), (503, "host_short", Blame::Host));
        assert!(error.retry_after_ms.is_some() && error.message.contains("262144 bytes"), "{error:?}");
        drop(end);
    }
}
