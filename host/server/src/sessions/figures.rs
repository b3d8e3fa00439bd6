//! What is counted of sessions.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::store::Size;

/// Why a session went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// Too many.
    Count,
    /// Too much memory.
    Bytes,
    /// It idled too long.
    Expired,
    /// A client or an operator said so.
    Dropped,
}

impl Evicted {
    const ALL: [Self; 4] = [Self::Count, Self::Bytes, Self::Expired, Self::Dropped];

    fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Bytes => "bytes",
            Self::Expired => "expired",
            Self::Dropped => "dropped",
        }
    }
}

/// Counts sessions that went.
#[derive(Debug, Clone, Default)]
pub struct Evictions([Counter; 4]);

impl Evictions {
    /// One went.
    pub fn count(&self, why: Evicted) {
        self.0[why as usize].inc();
    }

    /// How many went so.
    pub fn of(&self, why: Evicted) -> u64 {
        self.0[why as usize].get()
    }
}

/// What became of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Snapshot {
    /// It was written.
    Written,
    /// It could not be written.
    Failed,
    /// It was read at the start.
    Restored,
    /// It could not be used.
    Refused,
}

impl Snapshot {
    const ALL: [Self; 4] = [Self::Written, Self::Failed, Self::Restored, Self::Refused];

    fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Failed => "failed",
            Self::Restored => "restored",
            Self::Refused => "refused",
        }
    }
}

type By = Family<[(&'static str, String); 1], Counter>;

/// All of it.
#[derive(Debug, Clone, Default)]
pub struct Counted {
    sessions: Gauge,
    bytes: Gauge,
    snapshot_bytes: Gauge,
    /// Requests whose conversation was found.
    pub hits: Counter,
    /// Requests that continue nothing that is remembered.
    pub misses: Counter,
    /// Sessions that went.
    pub evictions: Evictions,
    snapshots: [Counter; 4],
}

impl Counted {
    /// Every series is there from the start.
    pub fn register(registry: &mut Registry) -> Self {
        let counted = Self::default();
        registry.register("sessions", "Conversations remembered", counted.sessions.clone());
        registry.register("session_bytes", "Memory of the conversations remembered", counted.bytes.clone());
        let help = "Size of the sessions' snapshot as it was last written";
        registry.register("session_snapshot_bytes", help, counted.snapshot_bytes.clone());
        let lookups = By::default();
        registry.register(
            "session_lookups",
            "Conversations looked up for requests, by result",
            lookups.clone(),
        );
        let evicted = By::default();
        let help = "Conversations forgotten, by reason: too many, too much memory, idle too long, or told to";
        registry.register("sessions_evicted", help, evicted.clone());
        let snapshots = By::default();
        registry.register("session_snapshots", "Snapshots of sessions, by outcome", snapshots.clone());
        let of = |family: &By, label, value: &str| family.get_or_create_owned(&[(label, value.to_owned())]);
        Self {
            hits: of(&lookups, "result", "hit"),
            misses: of(&lookups, "result", "miss"),
            evictions: Evictions(Evicted::ALL.map(|why| of(&evicted, "reason", why.name()))),
            snapshots: Snapshot::ALL.map(|what| of(&snapshots, "outcome", what.name())),
            ..counted
        }
    }

    /// What is stored now.
    pub fn size(&self, size: Size) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.sessions.set(gauge(size.sessions));
        self.bytes.set(gauge(size.bytes));
    }

    /// Something became of a snapshot.
    pub fn snapshot(&self, what: Snapshot) {
        self.snapshots[what as usize].inc();
    }

    /// How often that became of one.
    pub fn snapshots(&self, what: Snapshot) -> u64 {
        self.snapshots[what as usize].get()
    }

    /// So large is it on disk.
    pub fn snapshot_bytes(&self, bytes: u64) {
        self.snapshot_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}
