//! What a copy thread does.

use std::sync::PoisonError;
use std::time::Duration;

use super::Shared;

/// How long a thread without work sleeps at most before it looks again: a wake-up that was lost costs this once.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// Copies slices until the fabric stops. Only the lock is held between slices, and never while copying.
pub(super) fn run(shared: &Shared) {
    let mut state = shared.lock();
    while !state.stopping {
        let Some(slice) = state.jobs.hand_out() else {
            let slept = shared.work.wait_timeout(state, IDLE_LOOK);
            (state, _) = slept.unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        if state.jobs.has_work() {
            shared.work.notify_one();
        }
        drop(state);
        let copied = slice.copy();
        state = shared.lock();
        shared.give_back(&mut state, slice, copied);
    }
}
