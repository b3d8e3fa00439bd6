//! A waker that keeps still while its own poll is running.
//!
//! A connection and the request that drives it are polled together, in one task. Each hand-over between them wakes that
//! very task, which would then run once more for nothing, with each event of a stream. Only what happens outside the
//! poll, as when the socket becomes ready, must wake it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Polls in a row while each wakes itself. Past it others of the thread have their turn first.
const ROUNDS_AT_MOST: usize = 16;

/// Who is to be woken, and whether a poll is running.
#[derive(Debug, Default)]
struct Quiet {
    task: Mutex<Option<Waker>>,
    is_polling: AtomicBool,
    was_woken: AtomicBool,
}

impl Wake for Quiet {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.was_woken.store(true, Ordering::SeqCst);
        if !self.is_polling.load(Ordering::SeqCst)
            && let Some(task) = &*self.task.lock().unwrap_or_else(PoisonError::into_inner)
        {
            task.wake_by_ref();
        }
    }
}

/// Polls what belongs together.
#[derive(Debug)]
pub(super) struct QuietPoll {
    quiet: Arc<Quiet>,
    waker: Waker,
}

impl Default for QuietPoll {
    fn default() -> Self {
        let quiet = Arc::new(Quiet::default());
        Self { waker: quiet.clone().into(), quiet }
    }
}

impl QuietPoll {
    /// Polls until nothing moves any more, or long enough. The task of `context` is woken by what happens later; not by what happened
    /// in the poll when that was ready, since whoever takes the outcome polls again for the next.
    pub fn poll<T>(
        &self,
        context: &mut Context<'_>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let quiet = &*self.quiet;
        {
            let mut task = quiet.task.lock().unwrap_or_else(PoisonError::into_inner);
            if !task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
                *task = Some(context.waker().clone());
            }
        }
        quiet.is_polling.store(true, Ordering::SeqCst);
        let mut rounds = 0;
        let polled = loop {
            rounds += 1;
            quiet.was_woken.store(false, Ordering::SeqCst);
            let polled = poll(&mut Context::from_waker(&self.waker));
            let is_still = !quiet.was_woken.load(Ordering::SeqCst);
            if polled.is_ready() || is_still || rounds == ROUNDS_AT_MOST {
                break polled;
            }
        };
        quiet.is_polling.store(false, Ordering::SeqCst);
        // What came between the last look and the end of the poll, or in the last of many rounds.
        if polled.is_pending() && quiet.was_woken.load(Ordering::SeqCst) {
            context.waker().wake_by_ref();
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_wake_within_the_poll_polls_again_and_wakes_nobody() {
        let task = Arc::new(Counting::default());
        let waker = task.clone().into();
        let quiet = QuietPoll::default();
        let mut polls = 0;
        let polled: Poll<()> = quiet.poll(&mut Context::from_waker(&waker), |context| {
            polls += 1;
            if polls < 3 {
                context.waker().wake_by_ref();
            }
            Poll::Pending
        });
        assert!(polled.is_pending());
        assert_eq!((polls, task.0.load(Ordering::SeqCst)), (3, 0));
    }

    #[test]
    fn one_that_wakes_itself_for_ever_lets_others_run() {
        let task = Arc::new(Counting::default());
        let waker = task.clone().into();
        let mut polls = 0;
        let polled: Poll<()> = QuietPoll::default().poll(&mut Context::from_waker(&waker), |context| {
            polls += 1;
            assert!(polls <= ROUNDS_AT_MOST, "it never ends");
            context.waker().wake_by_ref();
            Poll::Pending
        });
        assert!(polled.is_pending());
        assert_eq!((polls, task.0.load(Ordering::SeqCst)), (ROUNDS_AT_MOST, 1));
    }

    #[test]
    fn a_wake_after_the_poll_wakes_the_task_of_the_last_poll() {
        let (first, second) = (Arc::new(Counting::default()), Arc::new(Counting::default()));
        let quiet = QuietPoll::default();
        let mut kept = None;
        for task in [&first, &second] {
            let waker = task.clone().into();
            let _: Poll<()> = quiet.poll(&mut Context::from_waker(&waker), |context| {
                kept = Some(context.waker().clone());
                Poll::Pending
            });
        }
        kept.expect("polled").wake();
        assert_eq!((first.0.load(Ordering::SeqCst), second.0.load(Ordering::SeqCst)), (0, 1));
    }

    #[test]
    fn a_ready_poll_leaves_the_next_to_its_taker() {
        let task = Arc::new(Counting::default());
        let waker = task.clone().into();
        let polled = QuietPoll::default().poll(&mut Context::from_waker(&waker), |context| {
            context.waker().wake_by_ref();
            Poll::Ready(7)
        });
        assert_eq!((polled, task.0.load(Ordering::SeqCst)), (Poll::Ready(7), 0));
    }
}
