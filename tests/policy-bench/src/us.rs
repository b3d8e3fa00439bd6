//! Times as people read them.

use std::time::Duration;

/// Microseconds.
pub fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Two decimals of a microsecond.
pub fn shown(time: Duration) -> String {
    format!("{:.2}", us(time))
}
