//! All that requests share. Each member has one owner of its changes, named where it is declared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_core::admission::Room;
use sluice_policy::PolicyHost;
use sluice_transfer::node::NodeHandle;

use crate::admission::Admission;
use crate::clock::Clock;
use crate::config::{Config, Secrets};
use crate::decisions::Decisions;
use crate::fleet::Fleet;
use crate::ids::Ids;
use crate::kept::KeptTurns;
use crate::release::Releases;
use crate::sessions::Sessions;
use crate::telemetry::Telemetry;
use crate::telemetry::admission::AdmissionMetrics;
use crate::tenants::{KeyDigest, Tenants};
use crate::upstream::Upstream;

/// The host process' state.
pub struct App {
    /// As read at the start.
    pub config: Config,
    /// Changed by probes and bookings.
    pub fleet: Fleet,
    /// Places among the requests in flight, and the queue for them.
    pub admission: Arc<Admission>,
    /// Who may ask. What they have left is changed when requests come and end.
    pub tenants: Arc<Tenants>,
    /// Changed when turns end.
    pub sessions: Sessions,
    /// Changed when turns end, and by their wheel.
    pub kept: KeptTurns,
    /// Changed by the folder watcher.
    pub policies: Arc<PolicyHost>,
    /// The last ones, for who asks; written by requests.
    pub decisions: Decisions,
    /// What the admin API asks for, if it asks.
    pub admin_token: Option<KeyDigest>,
    /// Connections to engines.
    pub upstream: Upstream,
    /// Logs and metrics.
    pub telemetry: Arc<Telemetry>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Holds to be ended early.
    pub releases: Releases,
    /// The mover of KV, of a host that has one; set before the first request.
    pub node: Option<NodeHandle>,
    /// Request ids.
    pub ids: Ids,
    draining: AtomicBool,
}

impl App {
    /// The state at the start: nobody is up, nothing is remembered.
    pub fn new(
        config: Config,
        secrets: &Secrets,
        upstream: Upstream,
        policies: Arc<PolicyHost>,
        telemetry: Arc<Telemetry>,
        clock: Arc<dyn Clock>,
        releases: Releases,
    ) -> Self {
        let names = Tenants::names(&config.tenants);
        let metrics = telemetry.metrics.register(|registry| AdmissionMetrics::register(registry, &names));
        let metrics = Arc::new(metrics);
        let tenants = Arc::new(Tenants::new(&config.tenants, secrets, &clock, metrics.clone()));
        let room =
            Room { running_at_most: config.server.max_in_flight, waiting_at_most: config.server.max_queued };
        let in_flight = telemetry.metrics.in_flight().clone();
        let pools: Vec<_> = config
            .pools
            .iter()
            .filter(|pool| pool.mode.keeps_turns())
            .map(|pool| pool.name.clone())
            .collect();
        Self {
            admission: Admission::new(room, tenants.shares(), clock.clone(), in_flight, metrics),
            tenants,
            fleet: Fleet::new(&config, secrets, &clock, &telemetry.metrics),
            sessions: Sessions::new(&config.sessions, &telemetry.metrics),
            kept: KeptTurns::new(&telemetry.metrics, &pools),
            upstream,
            decisions: Decisions::default(),
            admin_token: secrets.admin_token,
            policies,
            telemetry,
            clock,
            releases,
            node: None,
            ids: Ids::default(),
            draining: AtomicBool::new(false),
            config,
        }
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
