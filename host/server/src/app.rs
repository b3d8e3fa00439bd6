//! All that requests share. Each member has one owner of its changes, named where it is declared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sluice_policy::PolicyHost;

use crate::clock::Clock;
use crate::config::Config;
use crate::fleet::Fleet;
use crate::ids::Ids;
use crate::release::Releases;
use crate::sessions::Sessions;
use crate::telemetry::Telemetry;
use crate::threads;
use crate::upstream::Upstream;

/// The host process' state.
pub struct App {
    /// As read at the start.
    pub config: Config,
    /// Changed by probes and bookings.
    pub fleet: Fleet,
    /// Changed when turns end.
    pub sessions: Sessions,
    /// Changed by the folder watcher.
    pub policies: Arc<PolicyHost>,
    /// Connections to engines.
    pub upstream: Upstream,
    /// Logs and metrics.
    pub telemetry: Arc<Telemetry>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Holds to be ended early.
    pub releases: Releases,
    /// Request ids.
    pub ids: Ids,
    draining: AtomicBool,
    in_flight: Arc<AtomicUsize>,
}

impl App {
    /// The state at the start: nobody is up, nothing is remembered.
    pub fn new(
        config: Config,
        policies: Arc<PolicyHost>,
        telemetry: Arc<Telemetry>,
        clock: Arc<dyn Clock>,
        releases: Releases,
    ) -> Self {
        Self {
            fleet: Fleet::new(&config.pools, &clock, &telemetry.metrics),
            sessions: Sessions::new(config.sessions.clone()),
            upstream: Upstream::new(
                Duration::from_millis(config.server.connect_timeout_ms),
                threads::wanted(),
            ),
            policies,
            telemetry,
            clock,
            releases,
            ids: Ids::default(),
            draining: AtomicBool::new(false),
            in_flight: Arc::default(),
            config,
        }
    }

    /// Takes a place among the requests in flight, or `None` when all are taken.
    pub fn admit(&self) -> Option<Place> {
        let limit = self.config.server.max_in_flight;
        let taken = self
            .in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < limit).then_some(count + 1));
        taken.ok().map(|_| {
            let gauge = self.telemetry.metrics.in_flight().clone();
            gauge.inc();
            Place { in_flight: self.in_flight.clone(), gauge }
        })
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// From now on `/ready` says no, so that balancers send no more.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether the host is on its way out.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// A place among the requests in flight, given back when dropped.
#[derive(Debug)]
pub struct Place {
    in_flight: Arc<AtomicUsize>,
    gauge: prometheus_client::metrics::gauge::Gauge,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.gauge.dec();
    }
}
