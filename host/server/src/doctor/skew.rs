//! How far an engine's clock is from ours, by the `Date` of an answer.

use hyper::header::{DATE, HeaderMap};
use std::time::UNIX_EPOCH;

/// Milliseconds that the engine's clock is ahead at the least (behind, where negative), of an answer to a request sent
/// and answered at these times of our wall clock. `None` without a readable `Date`.
pub fn clock_skew_ms(headers: &HeaderMap, sent_ms: u64, answered_ms: u64) -> Option<i64> {
    let date = httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()?;
    let second_ms = u64::try_from(date.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()?;
    Some(least_skew_ms(second_ms, sent_ms, answered_ms))
}

/// A date counts whole seconds, and uvicorn, vLLM's server, writes a new one once a second: the engine's time was
/// anywhere in that second or in the next.
fn least_skew_ms(second_ms: u64, sent_ms: u64, answered_ms: u64) -> i64 {
    let last_ms = second_ms + 1_999;
    let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    if second_ms > answered_ms {
        signed(second_ms - answered_ms)
    } else if last_ms < sent_ms {
        -signed(sent_ms - last_ms)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_is_what_cannot_be_explained_by_rounding_and_travel() {
        for (second_ms, sent_ms, answered_ms, skew_ms) in [
            (10_000, 10_300, 10_310, 0),
            (10_000, 11_998, 12_500, 0),
            (10_000, 9_990, 10_000, 0),
            (10_000, 8_000, 8_500, 1_500),
            (10_000, 13_999, 14_100, -2_000),
        ] {
            assert_eq!(
                least_skew_ms(second_ms, sent_ms, answered_ms),
                skew_ms,
                "{second_ms} {sent_ms} {answered_ms}"
            );
        }
    }

    #[test]
    fn dates_are_read() {
        let mut headers = HeaderMap::new();
        assert_eq!(clock_skew_ms(&headers, 0, 0), None);
        headers.insert(DATE, "Thu, 01 Jan 1970 00:00:10 GMT".parse().expect("valid"));
        assert_eq!(clock_skew_ms(&headers, 10_000, 10_001), Some(0));
        headers.insert(DATE, "yesterday".parse().expect("valid"));
        assert_eq!(clock_skew_ms(&headers, 0, 0), None);
    }
}
