//! Long work on bytes, off the event loops: while it lasts, no other request of its data thread would move.

use std::future::pending;
use std::panic::resume_unwind;

use tokio::task::spawn_blocking;

/// Bytes from which reading JSON counts as long. A prompt is crossed at memory speed, but a text made of brackets
/// takes some nanoseconds for each byte, which is long for the longest body taken by default, 16 MiB.
pub const LONG_FROM_BYTES: usize = 256 * 1024;

/// Whether work on so many bytes is done at once.
pub fn is_short(bytes: usize) -> bool {
    bytes < LONG_FROM_BYTES
}

/// Does work on so many bytes, elsewhere if that may take long.
pub async fn run<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if is_short(bytes) {
        return work();
    }
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The host ends, and this request with it.
            Err(_) => pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_work_leaves_its_thread_free() {
        let here = std::thread::current().id();
        for (bytes, stays) in [(LONG_FROM_BYTES - 1, true), (LONG_FROM_BYTES, false)] {
            let there = run(bytes, || std::thread::current().id()).await;
            assert_eq!(there == here, stays, "{bytes}");
        }
    }
}
