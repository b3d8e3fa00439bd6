//! What the host tells of itself: logs, metrics, traces.

mod access_log;
pub mod admission;
mod counted;
mod decision_header;
mod families;
pub mod labels;
pub mod metrics;
pub mod otlp;
pub mod pool_metrics;
mod sampling;
pub mod span_metrics;
pub mod story;
pub mod traceparent;
pub mod trail;
pub mod worker_metrics;

use std::collections::HashSet;
use std::io::IsTerminal;
use std::sync::{Mutex, OnceLock, PoisonError};

use metrics::Metrics;
use otlp::Exports;
use sampling::Sampler;

use crate::config;

/// Distinct warnings that are remembered as said. Keys are built from configured names, so this is never met;
/// past it warnings repeat rather than memory grow.
const WARNINGS_REMEMBERED: usize = 4_096;

/// Logs, metrics and traces in one place.
#[derive(Debug, Default)]
pub struct Telemetry {
    /// Counters, gauges, histograms.
    pub metrics: Metrics,
    /// `None` while no collector is configured.
    sampler: Option<Sampler>,
    /// Set once the exporter runs.
    exports: OnceLock<Exports>,
    /// Whether every request is logged at info.
    access_log: bool,
    said: Mutex<HashSet<String>>,
}

impl Telemetry {
    /// As configured. Spans are sent once an [`otlp::Exporter`] is started.
    pub fn new(config: &config::Telemetry) -> Self {
        Self {
            sampler: config.otlp_endpoint.as_ref().map(|_| Sampler::new(config.sample_ratio)),
            access_log: config.access_log,
            ..Self::default()
        }
    }

    /// Logs a warning the first time its key comes. Each case is counted elsewhere; the log says it once.
    pub fn warn_once(&self, key: &str, message: impl FnOnce() -> String) {
        if self.is_news(key) {
            tracing::warn!("{} (said once, counted in /metrics)", message());
        }
    }

    /// Whether something was not yet said; from now on it was.
    pub fn is_news(&self, key: &str) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.contains(key) {
            return false;
        }
        if said.len() < WARNINGS_REMEMBERED {
            said.insert(key.to_owned());
        }
        true
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
