//! What the schedules reached.

use std::collections::{BTreeMap, BTreeSet};

use sluice_transfer::protocol::{
    Attempt, Hold, HoldEnd, HoldPhase, Reason, SinkPhase, SourcePhase, TransferId, Transfers,
};

/// A machine's step from one phase to another, or something noted.
pub type Edge = (&'static str, &'static str);

#[derive(Debug, Default)]
pub struct Coverage(pub BTreeMap<Edge, u64>);

/// What a usual run must reach, or it proves less than it seems to.
const REQUIRED: &[Edge] = &[
    ("hold: delivered", "hold: gone"),
    ("hold: expired", "hold: gone"),
    ("hold: filling", "hold: expired"),
    ("hold: filling", "hold: held"),
    ("hold: filling", "hold: lost"),
    ("hold: held", "hold: delivered"),
    ("hold: held", "hold: expired"),
    ("hold: held", "hold: gone"),
    ("hold: held", "hold: lost"),
    ("hold: held", "hold: released"),
    ("hold: released", "hold: gone"),
    ("sink: closing", "sink: gone"),
    ("sink: ending, cancelled", "sink: gone"),
    ("sink: ending, endpoint closed", "sink: gone"),
    ("sink: ending, engine gone", "sink: gone"),
    ("sink: ending, fabric", "sink: gone"),
    ("sink: ending, hold ended", "sink: gone"),
    ("sink: ending, hold expired", "sink: gone"),
    ("sink: ending, lease too short", "sink: gone"),
    ("sink: ending, no first byte", "sink: gone"),
    ("sink: ending, peer lost", "sink: gone"),
    ("sink: ending, stale", "sink: gone"),
    ("sink: ending, superseded", "sink: gone"),
    ("sink: ending, too slow", "sink: gone"),
    ("sink: open", "sink: closing"),
    ("sink: open", "sink: gone"),
    ("source: draining", "source: gone"),
    ("source: moving", "source: draining"),
    ("source: moving", "source: gone"),
    ("source: new", "source: moving"),
    ("source: new", "source: waiting"),
    ("source: waiting", "source: gone"),
    ("source: waiting", "source: moving"),
    ("world", "a part brought by READ"),
    ("world", "a part brought by WRITE"),
    ("world", "a part given up"),
    ("world", "an end that vouches for nothing"),
    ("world", "an old registration refused"),
    ("world", "an operation was cut off"),
    ("world", "blocks quarantined"),
    ("world", "blocks taken back behind the owner's back"),
    ("world", "confirmation refused"),
    ("world", "confirmed within the grace"),
    ("world", "continued after a stop"),
    ("world", "endpoint closed"),
    ("world", "hold refused, full"),
    ("world", "lease not renewed"),
    ("world", "lease renewed"),
    ("world", "message of an old epoch"),
    ("world", "message replayed"),
    ("world", "post cancelled"),
    ("world", "process gone"),
    ("world", "registered before the hold"),
    ("world", "registration met by silence"),
    ("world", "renewal for a time refused"),
    ("world", "renewed for a time"),
    ("world", "sink refused, full"),
    ("world", "staging slots freed"),
    ("world", "write landed after its process died"),
    ("world", "write landed in quarantine"),
];

impl Coverage {
    /// What of [`REQUIRED`] was never reached.
    pub fn missing(&self) -> Vec<Edge> {
        REQUIRED.iter().filter(|edge| !self.0.contains_key(*edge)).copied().collect()
    }

    pub fn note(&mut self, what: &'static str) {
        self.edge("world", what);
    }

    pub fn edge(&mut self, from: &'static str, to: &'static str) {
        *self.0.entry((from, to)).or_default() += 1;
    }

    pub fn merge(&mut self, other: Self) {
        for (edge, count) in other.0 {
            *self.0.entry(edge).or_default() += count;
        }
    }
}

/// In which phase every machine of an owner is.
#[derive(Debug, PartialEq, Eq)]
pub struct Phases {
    sinks: BTreeMap<Attempt, &'static str>,
    sources: BTreeMap<Attempt, &'static str>,
    holds: BTreeMap<TransferId, &'static str>,
}

impl Phases {
    pub fn of(owner: &Transfers) -> Self {
        Self {
            sinks: owner.sinks().iter().map(|(key, sink)| (*key, sink_phase(sink.phase()))).collect(),
            sources: owner.sources().iter().map(|(key, own)| (*key, source_phase(own.phase()))).collect(),
            holds: owner.holds().iter().map(|(key, hold)| (*key, hold_phase(hold))).collect(),
        }
    }

    pub fn note_changes(&self, after: &Self, coverage: &mut Coverage) {
        changes(&self.sinks, &after.sinks, "sink: new", "sink: gone", coverage);
        changes(&self.sources, &after.sources, "source: new", "source: gone", coverage);
        changes(&self.holds, &after.holds, "hold: new", "hold: gone", coverage);
    }
}

fn changes<K: Copy + Ord>(
    before: &BTreeMap<K, &'static str>,
    after: &BTreeMap<K, &'static str>,
    new: &'static str,
    gone: &'static str,
    coverage: &mut Coverage,
) {
    for key in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let from = before.get(key).copied().unwrap_or(new);
        let to = after.get(key).copied().unwrap_or(gone);
        if from != to {
            coverage.edge(from, to);
        }
    }
}

fn sink_phase(phase: SinkPhase) -> &'static str {
    match phase {
        SinkPhase::Open => "sink: open",
        SinkPhase::Closing => "sink: closing",
        SinkPhase::Ending(reason) => match reason {
            Reason::Cancelled => "sink: ending, cancelled",
            Reason::Superseded => "sink: ending, superseded",
            Reason::NoFirstByte => "sink: ending, no first byte",
            Reason::TooSlow => "sink: ending, too slow",
            Reason::PeerLost => "sink: ending, peer lost",
            Reason::EndpointClosed => "sink: ending, endpoint closed",
            Reason::Fabric => "sink: ending, fabric",
            Reason::HoldEnded(HoldEnd::Expired) => "sink: ending, hold expired",
            Reason::HoldEnded(_) => "sink: ending, hold ended",
            Reason::LeaseTooShort => "sink: ending, lease too short",
            Reason::Stale => "sink: ending, stale",
            Reason::EngineGone => "sink: ending, engine gone",
            Reason::Incompatible | Reason::BadReport | Reason::Unknown => "sink: ending, other",
        },
    }
}

fn source_phase(phase: SourcePhase) -> &'static str {
    match phase {
        SourcePhase::Waiting => "source: waiting",
        SourcePhase::Moving => "source: moving",
        SourcePhase::Draining(_) => "source: draining",
        SourcePhase::Read => "source: read",
    }
}

fn hold_phase(hold: &Hold) -> &'static str {
    match hold.phase() {
        HoldPhase::Filling => "hold: filling",
        HoldPhase::Held => "hold: held",
        HoldPhase::Leaving(HoldEnd::Delivered) => "hold: delivered",
        HoldPhase::Leaving(HoldEnd::Released) => "hold: released",
        HoldPhase::Leaving(HoldEnd::Expired) => "hold: expired",
        HoldPhase::Leaving(HoldEnd::Lost) => "hold: lost",
    }
}
