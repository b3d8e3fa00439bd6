//! Waiting for what must come about.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::HarnessError;

/// Between two looks at a condition: well below what tests wait for, and cheap on a busy machine.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Looks until there is something to see, or `within` is over.
pub async fn until<T>(
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> Result<T, HarnessError> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(seen) = look().await {
            return Ok(seen);
        }
        if Instant::now() >= deadline {
            return Err(HarnessError::Late { what: what.to_owned(), within });
        }
        sleep(LOOK_EVERY).await;
    }
}
