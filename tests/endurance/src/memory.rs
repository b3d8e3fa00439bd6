//! Whether memory stays flat: a straight line through samples of it.

/// Of a run that memory may take to find its level: stores fill, pools warm up.
pub const WARM_UP_SHARE: f64 = 0.2;

/// One look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Requests done.
    pub requests: u64,
    /// Resident, in bytes.
    pub bytes: u64,
}

/// The line that lies nearest to all samples after the warm-up (least squares).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Where it begins, in bytes.
    pub first_bytes: f64,
    /// By how much it rises from its first sample to its last, in bytes.
    pub rise_bytes: f64,
    /// Bytes a request.
    pub slope: f64,
}

/// The line of samples in the order in which they were taken; `None` of fewer than two after the warm-up.
pub fn line(samples: &[Sample]) -> Option<Line> {
    let warm_from = (samples.last()?.requests as f64 * WARM_UP_SHARE) as u64;
    let warm: Vec<_> = samples.iter().filter(|sample| sample.requests >= warm_from).collect();
    let (first, last) = (warm.first()?.requests as f64, warm.last()?.requests as f64);
    if first >= last {
        return None;
    }
    let count = warm.len() as f64;
    let mean = |of: &dyn Fn(&Sample) -> f64| warm.iter().map(|sample| of(sample)).sum::<f64>() / count;
    let requests = |sample: &Sample| sample.requests as f64;
    let bytes = |sample: &Sample| sample.bytes as f64;
    let (x, y) = (mean(&requests), mean(&bytes));
    let covariance = mean(&|sample| (requests(sample) - x) * (bytes(sample) - y));
    let variance = mean(&|sample| (requests(sample) - x).powi(2));
    let slope = covariance / variance;
    Some(Line { first_bytes: y + slope * (first - x), rise_bytes: slope * (last - first), slope })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(bytes: impl Fn(u64) -> u64) -> Vec<Sample> {
        (0..=100).map(|step| Sample { requests: step * 10, bytes: bytes(step * 10) }).collect()
    }

    #[test]
    fn a_leak_is_told_from_a_level_and_the_warm_up_does_not_count() {
        let level = line(&samples(|requests| 5_000 + 100 * requests.min(200))).expect("a line");
        assert!(level.slope.abs() < 1e-9 && level.rise_bytes.abs() < 1e-6, "{level:?}");
        let leak = line(&samples(|requests| 5_000 + 3 * requests)).expect("a line");
        assert!((leak.slope - 3.0).abs() < 1e-9 && (leak.rise_bytes - 2_400.0).abs() < 1e-6, "{leak:?}");
        assert_eq!(line(&samples(|_| 1)[..1]), None);
    }
}
