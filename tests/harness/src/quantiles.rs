//! Quantiles of measured times.

use std::time::Duration;

/// The value below which a share of all values lies (nearest rank), in milliseconds; `None` of no values.
pub fn quantile_ms(times: &[Duration], share: f64) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let time = sorted.get(rank.max(1) - 1)?;
    Some(time.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_ranks() {
        let times: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        for (share, expected) in [(0.0, 1.0), (0.5, 50.0), (0.95, 95.0), (0.99, 99.0), (1.0, 100.0)] {
            assert_eq!(quantile_ms(&times, share), Some(expected));
        }
        assert_eq!(quantile_ms(&times[..1], 0.99), Some(100.0));
        assert_eq!(quantile_ms(&[], 0.5), None);
    }
}
