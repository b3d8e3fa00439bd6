//! What the host tells of itself: logs and metrics.

pub mod admission;
mod counted;
mod families;
pub mod labels;
pub mod metrics;
pub mod pool_metrics;
pub mod worker_metrics;

use std::collections::HashSet;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

use metrics::Metrics;

/// Distinct warnings that are remembered as said. Keys are built from configured names, so this is never met;
/// past it warnings repeat rather than memory grow.
const WARNINGS_REMEMBERED: usize = 4_096;

/// Logs and metrics in one place.
#[derive(Debug, Default)]
pub struct Telemetry {
    /// Counters, gauges, histograms.
    pub metrics: Metrics,
    said: Mutex<HashSet<String>>,
}

impl Telemetry {
    /// Logs a warning the first time its key comes. Each case is counted elsewhere; the log says it once.
    pub fn warn_once(&self, key: &str, message: impl FnOnce() -> String) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.contains(key) {
            return;
        }
        if said.len() < WARNINGS_REMEMBERED {
            said.insert(key.to_owned());
        }
        drop(said);
        tracing::warn!("{} (said once, counted in /metrics)", message());
    }

    /// Lets all warnings whose keys begin so be said again.
    pub fn forget_prefix(&self, prefix: &str) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).retain(|key| !key.starts_with(prefix));
    }

    /// Lets a warning be said again, once what it warned of has changed.
    pub fn forget(&self, key: &str) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// Starts logging to standard error. `SLUICE_LOG` filters as `RUST_LOG` does elsewhere; `json` writes one JSON
/// object a line.
pub fn start_logs(json: bool) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SLUICE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    // A second start, in tests, keeps the first.
    let _ = if json { builder.json().try_init() } else { builder.try_init() };
}
