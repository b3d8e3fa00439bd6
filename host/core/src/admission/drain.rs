//! How fast places become free, for an honest Retry-After.

use std::time::Duration;

use crate::measure::SmoothedRatio;

/// Ends over which the rate is smoothed: some hundred say enough, and a change shows within seconds under load.
const WINDOW_ENDS: f64 = 128.0;

/// The time between two ends, measured only while all places are taken: an idle host's ends say how often requests
/// come, not how fast it serves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrainRate {
    ms_per_end: SmoothedRatio,
    /// The last end, if all places were taken then.
    last: Option<Duration>,
}

impl Default for DrainRate {
    fn default() -> Self {
        Self { ms_per_end: SmoothedRatio::over(WINDOW_ENDS), last: None }
    }
}

impl DrainRate {
    /// One ended; `full` says whether all places were taken until then.
    pub fn left(&mut self, full: bool, now: Duration) {
        if let (true, Some(last)) = (full, self.last) {
            self.ms_per_end.observe(now.saturating_sub(last).as_secs_f64() * 1_000.0, 1.0);
        }
        self.last = full.then_some(now);
    }

    /// The time until so many have ended; `None` while nothing was measured. When nothing has ended for longer than
    /// usual, that longer time counts.
    pub fn time_for(&self, ends: usize, now: Duration) -> Option<Duration> {
        let silent_ms = self.last.map_or(0.0, |last| now.saturating_sub(last).as_secs_f64() * 1_000.0);
        let measured_ms = f64::from(self.ms_per_end.value());
        let each_ms = measured_ms.max(silent_ms);
        if measured_ms <= 0.0 && self.last.is_none() {
            return None;
        }
        // A day bounds it for whoever converts it; f64 to integer casts saturate.
        Some(Duration::from_millis((each_ms * ends as f64).min(86_400_000.0) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn only_a_full_host_is_measured() {
        let mut rate = DrainRate::default();
        assert_eq!(rate.time_for(1, ms(0)), None);
        rate.left(false, ms(100));
        rate.left(false, ms(60_000));
        assert_eq!(rate.time_for(1, ms(60_000)), None);
        for at in 0..10 {
            rate.left(true, ms(60_000 + at * 50));
        }
        assert_eq!(rate.time_for(1, ms(60_450)), Some(ms(50)));
        assert_eq!(rate.time_for(10, ms(60_450)), Some(ms(500)));
    }

    #[test]
    fn a_standstill_counts() {
        let mut rate = DrainRate::default();
        for at in 0..10 {
            rate.left(true, ms(at * 50));
        }
        assert_eq!(rate.time_for(1, ms(450 + 3_000)), Some(ms(3_000)));
    }
}
