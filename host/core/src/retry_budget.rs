//! How much a pool's failures may multiply its load. Without a bound, a fleet that fails under load gets three times
//! that load from its retries.

/// Retries that each request adds to the budget.
const RETRIES_A_REQUEST: f64 = 0.2;

/// Retries a second that are always allowed, so that a quiet pool can retry at all.
const RETRIES_A_SECOND: f64 = 10.0;

/// Retries a pool may still make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryBudget {
    left: f64,
    /// Retries at once at most.
    most: f64,
    requests: u64,
    at_ms: u64,
}

impl RetryBudget {
    /// A full budget of so many retries at once: when a part of the fleet dies, each request in flight needs one.
    pub fn of(burst: usize) -> Self {
        Self { left: burst as f64, most: burst as f64, requests: 0, at_ms: 0 }
    }

    /// Takes one retry, if one is left. `requests` counts the pool's requests so far; `now_ms` is by a clock that does
    /// not step.
    pub fn take(&mut self, requests: u64, now_ms: u64) -> bool {
        let new_requests = requests.saturating_sub(self.requests) as f64;
        let seconds = now_ms.saturating_sub(self.at_ms) as f64 / 1_000.0;
        let earned = new_requests.mul_add(RETRIES_A_REQUEST, seconds * RETRIES_A_SECOND);
        self.left = (self.left + earned).min(self.most);
        self.requests = self.requests.max(requests);
        self.at_ms = self.at_ms.max(now_ms);
        let has_one = self.left >= 1.0;
        if has_one {
            self.left -= 1.0;
        }
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_covered_and_then_a_fifth_of_the_load() {
        let mut budget = RetryBudget::of(100);
        assert_eq!((0..1_000).filter(|_| budget.take(1_000, 0)).count(), 100);
        // 1,000 more requests at one moment earn 200, of which the budget keeps 100.
        assert_eq!((0..1_000).filter(|_| budget.take(2_000, 0)).count(), 100);
        let one_by_one = (2_001..=3_000).filter(|requests| budget.take(*requests, 0)).count();
        assert!((199..=200).contains(&one_by_one), "{one_by_one}");
    }

    #[test]
    fn a_quiet_pool_earns_by_time() {
        let mut budget = RetryBudget::of(5);
        while budget.take(0, 0) {}
        assert!(budget.take(0, 100), "one in a tenth of a second");
        assert!(!budget.take(0, 100));
        assert_eq!((0..100).filter(|_| budget.take(0, 60_000)).count(), 5);
    }
}
