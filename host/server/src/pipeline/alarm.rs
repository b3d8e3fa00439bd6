//! When a stream that has begun is given up: how long its engine may say nothing, how long the whole request has, and
//! how long the connection is waited for once the answer is whole.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sluice_core::failure::Failure;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long an engine may take to end its stream after its last event. Past it the answer is over all the same, and
/// the connection is closed.
const END_AFTER_LAST: Duration = Duration::from_millis(250);

/// Rings when a stream is to be ended. Set anew only when it rings, not with each event.
pub(crate) struct Alarm {
    rings: Pin<Box<Sleep>>,
    /// The request's.
    deadline: Instant,
    silence_at_most: Duration,
    last_event: Instant,
    /// The last event came: the rest is waited for only so that the connection can be used again.
    is_ending: bool,
}

/// Why a stream ended before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The engine closed it.
    Broken,
    /// The request's time is over.
    TimedOut,
    /// The engine said nothing for too long.
    Silent,
    /// An event was too long.
    TooLong,
}

impl Alarm {
    /// The stream begins now.
    pub fn set(deadline: Instant, silence_at_most: Duration) -> Self {
        let now = Instant::now();
        let rings = Box::pin(sleep_until(deadline.min(now + silence_at_most)));
        Self { rings, deadline, silence_at_most, last_event: now, is_ending: false }
    }

    /// Something came.
    pub fn event(&mut self) {
        self.last_event = Instant::now();
    }

    /// The answer is whole.
    pub fn last_event(&mut self) {
        self.is_ending = true;
        self.rings.as_mut().reset(Instant::now() + END_AFTER_LAST);
    }

    /// Ready when the stream is to be ended; after its last event this cuts nothing.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Cut> {
        while self.rings.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let silent_at = self.last_event + self.silence_at_most;
            if self.is_ending || now >= self.deadline {
                return Poll::Ready(Cut::TimedOut);
            }
            if now >= silent_at {
                return Poll::Ready(Cut::Silent);
            }
            self.rings.as_mut().reset(self.deadline.min(silent_at));
        }
        Poll::Pending
    }
}

impl Cut {
    /// What it is in metrics, its code, and what the worker did.
    pub fn told(self) -> (Failure, &'static str, &'static str) {
        match self {
            Self::Broken => (Failure::BrokeOff, "stream_broken", "broke the stream off"),
            Self::TimedOut => {
                (Failure::OutOfTime, "timeout", "did not end its stream within server.request_timeout_ms")
            }
            Self::Silent => (
                Failure::Late,
                "stream_silent",
                "sent nothing for as long as server.stream_silence_ms allows",
            ),
            Self::TooLong => (Failure::TooLong, "stream_garbage", "sent an event that is too long"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::sleep;

    use super::*;

    const SILENCE: Duration = Duration::from_secs(10);

    /// When it rings, in seconds from the start, with events at these seconds; the last of which may be the stream's.
    async fn rings(deadline_s: u64, events_s: &[u64], last: bool) -> (Duration, Cut) {
        let start = Instant::now();
        let mut alarm = Alarm::set(start + Duration::from_secs(deadline_s), SILENCE);
        for at in events_s {
            let event = sleep(start + Duration::from_secs(*at) - Instant::now());
            tokio::select! {
                cut = poll_fn(|context| alarm.poll(context)) => return (start.elapsed(), cut),
                () = event => {}
            }
            alarm.event();
        }
        if last {
            alarm.last_event();
        }
        let cut = poll_fn(|context| alarm.poll(context)).await;
        (start.elapsed(), cut)
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_has_its_silence_and_its_time() {
        let seconds = Duration::from_secs;
        for (deadline_s, events_s, last, expected) in [
            (60, &[][..], false, (seconds(10), Cut::Silent)),
            (60, &[9, 18], false, (seconds(28), Cut::Silent)),
            (60, &[11], false, (seconds(10), Cut::Silent)),
            (5, &[], false, (seconds(5), Cut::TimedOut)),
            (25, &[9, 18], false, (seconds(25), Cut::TimedOut)),
            (60, &[9], true, (seconds(9) + END_AFTER_LAST, Cut::TimedOut)),
        ] {
            let (at, cut) = rings(deadline_s, events_s, last).await;
            // Timers have whole milliseconds.
            let early = at + Duration::from_millis(2) < expected.0;
            let late = at > expected.0 + Duration::from_millis(2);
            assert!(!early && !late && cut == expected.1, "{events_s:?}: {at:?} {cut:?}");
        }
    }
}
