//! Circuit breakers, for workers and for prefill/decode pairs: what fails again and again gets no work for a while,
//! then one leg to show that it works again.
//!
//! Pairs have breakers of their own because a transfer can fail between two workers that are both well: a stale
//! agent, a side channel that swallows packets.

/// Failures in a row that open a worker's breaker. One or two are noise that a retry covers.
pub const WORKER_FAILURES_TO_OPEN: u32 = 5;

/// The same for a pair. Fewer, since sparing a pair costs nothing while there are others.
pub const PAIR_FAILURES_TO_OPEN: u32 = 3;

/// How long a breaker stays open at first, in milliseconds: an engine that restarts takes seconds at least.
pub const OPEN_FIRST_MS: u64 = 1_000;

/// How long it stays open at most, in milliseconds. It doubles up to here each time the trial fails.
pub const OPEN_AT_MOST_MS: u64 = 30_000;

/// After so many milliseconds a trial leg without news no longer keeps others from trying.
pub const TRIAL_FORGOTTEN_MS: u64 = 60_000;

/// A breaker. Times are the caller's, in milliseconds, by a clock that does not step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    failures_to_open: u32,
    state: State,
    /// Times opened since the last success.
    opened: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed {
        failures: u32,
    },
    Open {
        until_ms: u64,
    },
    /// One leg tries whether it works again.
    Trying {
        since_ms: u64,
    },
}

impl Breaker {
    /// A closed breaker that opens after so many failures in a row.
    pub const fn after(failures_to_open: u32) -> Self {
        Self { failures_to_open, state: State::Closed { failures: 0 }, opened: 0 }
    }

    /// Whether a leg may be sent now.
    pub fn passes(&self, now_ms: u64) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until_ms } => now_ms >= until_ms,
            State::Trying { since_ms } => now_ms >= since_ms.saturating_add(TRIAL_FORGOTTEN_MS),
        }
    }

    /// Whether it is closed and saw no failure of late: nothing to remember.
    pub fn is_untroubled(&self) -> bool {
        self.state == State::Closed { failures: 0 }
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// A leg is sent. Of an open breaker whose time is over it is the trial. Returns whether it is.
    pub fn sent(&mut self, now_ms: u64) -> bool {
        let is_trial = !self.is_closed() && self.passes(now_ms);
        if is_trial {
            self.state = State::Trying { since_ms: now_ms };
        }
        is_trial
    }

    /// A leg went well. One that was under way when the breaker opened does not close it: the trial does.
    pub fn went_well(&mut self) {
        if !matches!(self.state, State::Open { .. }) {
            *self = Self::after(self.failures_to_open);
        }
    }

    /// A leg's first byte came. That is enough for a trial; failures in a row are forgotten only when a leg ends well,
    /// or a worker that breaks every answer off would never be spared.
    pub fn began_well(&mut self) {
        if matches!(self.state, State::Trying { .. }) {
            *self = Self::after(self.failures_to_open);
        }
    }

    /// A leg failed. Returns whether the breaker opened by it.
    pub fn failed(&mut self, now_ms: u64) -> bool {
        let failures = match self.state {
            State::Closed { failures } => failures + 1,
            State::Trying { .. } => self.failures_to_open,
            // Legs that were under way when it opened: told already.
            State::Open { .. } => return false,
        };
        if failures < self.failures_to_open {
            self.state = State::Closed { failures };
            return false;
        }
        let open_ms = OPEN_FIRST_MS.saturating_mul(1 << self.opened.min(16)).min(OPEN_AT_MOST_MS);
        self.opened = self.opened.saturating_add(1);
        self.state = State::Open { until_ms: now_ms.saturating_add(open_ms) };
        true
    }

    /// The trial ended without news, as when its client left: the next leg may try.
    pub fn trial_left(&mut self, now_ms: u64) {
        if matches!(self.state, State::Trying { .. }) {
            self.state = State::Open { until_ms: now_ms };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn opened(at_ms: u64) -> Breaker {
        let mut breaker = Breaker::after(3);
        assert!(!breaker.failed(at_ms) && !breaker.failed(at_ms) && breaker.failed(at_ms));
        breaker
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let mut breaker = Breaker::after(3);
        for _ in 0..10 {
            assert!(!breaker.failed(0) && !breaker.failed(0));
            breaker.went_well();
        }
        assert!(breaker.passes(0) && breaker.is_untroubled());
    }

    #[test]
    fn one_leg_tries_after_a_while_and_closes_it() {
        let mut breaker = opened(0);
        assert!(!breaker.passes(OPEN_FIRST_MS - 1));
        assert!(breaker.passes(OPEN_FIRST_MS) && breaker.sent(OPEN_FIRST_MS));
        assert!(!breaker.passes(OPEN_FIRST_MS + 1) && !breaker.sent(OPEN_FIRST_MS + 1), "one at a time");
        breaker.went_well();
        assert!(breaker.is_untroubled());
    }

    #[test]
    fn a_failed_trial_opens_it_for_longer_up_to_a_bound() {
        let mut breaker = opened(0);
        let mut at_ms = 0;
        let mut waited = Vec::new();
        for _ in 0..7 {
            let wait_ms = (0..=OPEN_AT_MOST_MS).find(|wait| breaker.passes(at_ms + wait)).expect("bounded");
            waited.push(wait_ms);
            at_ms += wait_ms;
            assert!(breaker.sent(at_ms) && breaker.failed(at_ms));
        }
        assert_eq!(waited, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
    }

    #[test]
    fn beginnings_end_a_trial_but_do_not_hide_failures() {
        let mut breaker = Breaker::after(3);
        assert!(!breaker.failed(0));
        breaker.began_well();
        assert!(!breaker.failed(0));
        breaker.began_well();
        assert!(breaker.failed(0), "three answers in a row broke off");
        assert!(breaker.sent(OPEN_FIRST_MS));
        breaker.began_well();
        assert!(breaker.is_closed());
    }

    #[test]
    fn a_trial_whose_client_left_says_nothing() {
        let mut breaker = opened(0);
        assert!(breaker.sent(OPEN_FIRST_MS));
        breaker.trial_left(OPEN_FIRST_MS + 5);
        assert!(breaker.passes(OPEN_FIRST_MS + 5), "the next may try");
        assert!(!breaker.is_closed());
    }

    #[test]
    fn news_of_legs_sent_before_it_opened_changes_nothing() {
        let mut breaker = opened(0);
        let before = breaker;
        breaker.went_well();
        assert!(!breaker.failed(10));
        assert_eq!(breaker, before);
    }

    #[test]
    fn a_trial_that_is_never_heard_of_again_is_forgotten() {
        let mut breaker = opened(0);
        assert!(breaker.sent(OPEN_FIRST_MS));
        assert!(breaker.passes(OPEN_FIRST_MS + TRIAL_FORGOTTEN_MS));
    }

    proptest! {
        /// Whatever happens, it lets a leg through again within its longest time.
        #[test]
        fn it_never_stays_shut(events in proptest::collection::vec((0_u8..4, 0_u64..5_000), 0..200)) {
            let mut breaker = Breaker::after(WORKER_FAILURES_TO_OPEN);
            let mut now_ms = 0;
            for (event, wait_ms) in events {
                now_ms += wait_ms;
                match event {
                    0 => drop(breaker.sent(now_ms)),
                    1 => breaker.went_well(),
                    2 => drop(breaker.failed(now_ms)),
                    _ => breaker.trial_left(now_ms),
                }
                prop_assert!(breaker.passes(now_ms + TRIAL_FORGOTTEN_MS.max(OPEN_AT_MOST_MS)));
            }
        }
    }
}
