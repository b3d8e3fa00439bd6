//! The node as people ask for it: `transfer` in `/admin/fleet`.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use serde::Serialize;
use sluice_engine_sdk::wire::{self, Direction, EngineId, HoldEnd, Reason, Refused, Verb};
use sluice_transfer::exchange::{Departed, Figures, Flow, FlowFigures};
use sluice_transfer::node::{AttachedEngine, NodeHandle};

use crate::config::Config;
use crate::kept::KeptTurns;
use crate::telemetry::pool_metrics::NONE;

/// The node.
#[derive(Debug, Serialize)]
pub struct NodeStatus {
    /// Where engines attach.
    pub socket: PathBuf,
    /// Engines that are attached.
    pub engines: Vec<EngineStatus>,
    /// What moved between whom, engines that have left last.
    pub flows: Vec<FlowStatus>,
    /// Transfers whose consumers have it all.
    pub completed: u64,
    /// Transfers that failed, by reason.
    pub failed: BTreeMap<&'static str, u64>,
    /// Holds and transfers that were not begun, by reason: their engines compute.
    pub refused: BTreeMap<&'static str, u64>,
    /// Holds that ended, by how.
    pub holds_ended: BTreeMap<&'static str, u64>,
    /// Holds that have begun and not ended.
    pub holds: usize,
    /// Turns that decode engines keep for the next one of their conversations.
    pub kept_turns: usize,
    /// Tokens of those turns.
    pub kept_tokens: u64,
    /// Commands to the exchange that wait.
    pub commands_waiting: usize,
}

/// An attached engine.
#[derive(Debug, Serialize)]
pub struct EngineStatus {
    /// Its name on the link.
    pub name: String,
    /// The worker of that name, `POOL/WORKER`, if there is one.
    pub worker: Option<String>,
    /// As it says itself.
    pub role: &'static str,
    /// What it says that it serves.
    pub model: String,
    /// KV blocks of a rank.
    pub blocks: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Tensor-parallel ranks.
    pub ranks: u32,
    /// Bytes of all its slabs.
    pub slab_bytes: u64,
    /// The processes of its ranks; 0 from another PID namespace.
    pub pids: Vec<u32>,
}

/// What moved between two engines.
#[derive(Debug, Serialize)]
pub struct FlowStatus {
    /// Of the source.
    pub pool: String,
    /// Whose KV: a worker, or "none" for an engine without one.
    pub source: String,
    /// Whose it became.
    pub sink: String,
    /// `pull` or `push`.
    pub verb: &'static str,
    /// Which way.
    pub direction: &'static str,
    /// Bytes in place.
    pub bytes: u64,
    /// Of them, those that moved while the prefill went on.
    pub overlapped_bytes: u64,
    /// Copies that ended well.
    pub operations: u64,
    /// Copies that failed.
    pub operations_failed: u64,
    /// Copies under way or waiting.
    pub queued: u64,
    /// How long there were such.
    pub moving_ms: u64,
    /// Transfers that a deadline ended.
    pub deadline_misses: u64,
}

/// What is known of the node now.
pub fn node(node: &NodeHandle, config: &Config, kept: &KeptTurns) -> NodeStatus {
    let (engines, figures, workers) = (node.engines(), node.figures(), workers(config));
    let (kept_turns, kept_tokens) = kept.size();
    NodeStatus {
        // Engines may be started in another folder than this host.
        socket: std::path::absolute(&config.transfer.socket)
            .unwrap_or_else(|_| config.transfer.socket.clone()),
        engines: engines.iter().map(|engine| engine_status(engine, &workers)).collect(),
        flows: flows(&figures, &names(&workers)),
        completed: figures.completed,
        failed: figures.failed.iter().map(|(reason, count)| (reason_name(*reason), *count)).collect(),
        refused: figures.refused.iter().map(|(why, count)| (refused_name(*why), *count)).collect(),
        holds_ended: figures.holds.iter().map(|(end, count)| (hold_end_name(*end), *count)).collect(),
        holds: node.holds(),
        kept_turns,
        kept_tokens,
        commands_waiting: figures.commands_waiting,
    }
}

/// Pool and worker by the name of their engine.
pub(super) fn workers(config: &Config) -> HashMap<String, (String, String)> {
    let pools = config.pools.iter();
    let workers = pools.flat_map(|pool| pool.workers.iter().map(move |worker| (pool, worker)));
    let named = workers.filter_map(|(pool, worker)| {
        Some((worker.engine.clone()?, (pool.name.clone(), worker.name.clone())))
    });
    named.collect()
}

fn engine_status(engine: &AttachedEngine, workers: &HashMap<String, (String, String)>) -> EngineStatus {
    let worker = workers.get(&engine.name);
    EngineStatus {
        name: engine.name.clone(),
        worker: worker.map(|(pool, worker)| format!("{pool}/{worker}")),
        role: role_name(engine.role),
        model: engine.model.clone(),
        blocks: engine.layout.blocks,
        block_tokens: engine.layout.block_tokens,
        ranks: engine.layout.tp_size,
        slab_bytes: engine.slab_bytes,
        pids: engine.pids.clone(),
    }
}

/// Under what the figures of engines stand.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    pool: String,
    worker: String,
}

/// Pool and worker of each configured engine: figures stand under these, whichever life of the engine they are of.
pub(super) fn names(workers: &HashMap<String, (String, String)>) -> HashMap<EngineId, Named> {
    let named = |(engine, (pool, worker)): (&String, &(String, String))| {
        (EngineId::of_name(engine), Named { pool: pool.clone(), worker: worker.clone() })
    };
    workers.iter().map(named).collect()
}

/// All flows by the names of their ends; those of engines that are no worker's are nobody's, so that sums never fall.
pub(super) fn flows(figures: &Figures, names: &HashMap<EngineId, Named>) -> Vec<FlowStatus> {
    let nobody = Named { pool: NONE.to_owned(), worker: NONE.to_owned() };
    let named = |engine: EngineId| names.get(&engine).unwrap_or(&nobody);
    let mut flows: BTreeMap<_, FlowStatus> = BTreeMap::new();
    let mut add = |(source, sink): (&Named, &Named), verb, direction, figures: &FlowFigures| {
        let key = (source.clone(), sink.clone(), verb, direction);
        flows.entry(key).or_insert_with(|| FlowStatus::new(source, sink, verb, direction)).add(figures);
    };
    for (Flow { source, sink, verb, direction }, figures) in &figures.flows {
        let ends = (named(source.engine), named(sink.engine));
        add(ends, verb_name(*verb), direction_name(*direction), figures);
    }
    for (Departed { source, sink, verb, direction }, figures) in &figures.departed {
        add((named(*source), named(*sink)), verb_name(*verb), direction_name(*direction), figures);
    }
    // Also before anything has moved: series that are asked for are there.
    add((&nobody, &nobody), NONE, NONE, &figures.forgotten);
    flows.into_values().collect()
}

impl FlowStatus {
    fn new(source: &Named, sink: &Named, verb: &'static str, direction: &'static str) -> Self {
        Self {
            pool: source.pool.clone(),
            source: source.worker.clone(),
            sink: sink.worker.clone(),
            verb,
            direction,
            bytes: 0,
            overlapped_bytes: 0,
            operations: 0,
            operations_failed: 0,
            queued: 0,
            moving_ms: 0,
            deadline_misses: 0,
        }
    }

    fn add(&mut self, figures: &FlowFigures) {
        self.bytes += figures.bytes;
        self.overlapped_bytes += figures.bytes_while_filling;
        self.operations += figures.operations;
        self.operations_failed += figures.failed;
        self.queued += figures.queued;
        self.moving_ms += figures.moving_ms;
        self.deadline_misses += figures.deadline_misses;
    }
}

fn role_name(role: wire::Role) -> &'static str {
    match role {
        wire::Role::Prefill => "prefill",
        wire::Role::Decode => "decode",
        wire::Role::Unified => "unified",
    }
}

fn verb_name(verb: Verb) -> &'static str {
    match verb {
        Verb::Read => "pull",
        Verb::Write => "push",
    }
}

fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::PrefillToDecode => "prefill-to-decode",
        Direction::DecodeToPrefill => "decode-to-prefill",
    }
}

/// How holds can end.
pub(super) const HOLD_ENDS: [HoldEnd; 4] =
    [HoldEnd::Delivered, HoldEnd::Released, HoldEnd::Expired, HoldEnd::Lost];

/// Why transfers can fail.
pub(super) fn reasons() -> impl Iterator<Item = Reason> {
    let plain = [
        Reason::Cancelled,
        Reason::Superseded,
        Reason::NoFirstByte,
        Reason::TooSlow,
        Reason::PeerLost,
        Reason::EndpointClosed,
        Reason::Fabric,
        Reason::Incompatible,
        Reason::LeaseTooShort,
        Reason::Stale,
        Reason::BadReport,
        Reason::Unknown,
        Reason::EngineGone,
    ];
    plain.into_iter().chain(HOLD_ENDS.map(Reason::HoldEnded))
}

/// Why transfers fail, in metrics and status.
pub(super) fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::Cancelled => "cancelled",
        Reason::Superseded => "superseded",
        Reason::NoFirstByte => "no_first_byte",
        Reason::TooSlow => "too_slow",
        Reason::PeerLost => "peer_lost",
        Reason::EndpointClosed => "endpoint_closed",
        Reason::Fabric => "fabric",
        Reason::Incompatible => "incompatible",
        Reason::LeaseTooShort => "lease_too_short",
        Reason::Stale => "stale",
        Reason::BadReport => "bad_report",
        Reason::Unknown => "unknown",
        Reason::EngineGone => "engine_gone",
        Reason::HoldEnded(HoldEnd::Delivered) => "hold_delivered",
        Reason::HoldEnded(HoldEnd::Released) => "hold_released",
        Reason::HoldEnded(HoldEnd::Expired) => "hold_expired",
        Reason::HoldEnded(HoldEnd::Lost) => "hold_lost",
    }
}

/// Why holds and transfers are not begun, in metrics and status.
pub(super) fn refused_name(why: Refused) -> &'static str {
    match why {
        Refused::Full => "full",
        Refused::Used => "used",
        Refused::Invalid => "invalid",
        Refused::NoSource => "no_source",
        Refused::Unproven => "unproven",
    }
}

/// How holds end, in metrics and status.
pub(super) fn hold_end_name(end: HoldEnd) -> &'static str {
    match end {
        HoldEnd::Delivered => "delivered",
        HoldEnd::Released => "released",
        HoldEnd::Expired => "expired",
        HoldEnd::Lost => "lost",
    }
}

#[cfg(test)]
mod tests {
    use sluice_transfer::protocol::Peer;

    use super::*;

    #[test]
    fn a_workers_flows_are_one_whatever_became_of_its_engine() {
        let peer = |name: &str, incarnation| Peer { engine: EngineId::of_name(name), incarnation };
        let (verb, direction) = (Verb::Write, Direction::PrefillToDecode);
        let flow = |source, sink| Flow { source, sink, verb, direction };
        let left = |source: &str, sink: &str| Departed {
            source: EngineId::of_name(source),
            sink: EngineId::of_name(sink),
            verb,
            direction,
        };
        let moved = |bytes| FlowFigures { bytes, operations: 1, ..FlowFigures::default() };
        let figures = Figures {
            flows: [
                (flow(peer("p", 2), peer("d", 1)), moved(1)),
                (flow(peer("q", 7), peer("d", 1)), moved(100)),
            ]
            .into(),
            departed: [(left("p", "d"), moved(10)), (left("q", "r"), moved(1_000))].into(),
            forgotten: moved(10_000),
            ..Figures::default()
        };
        let worker = |name: &str| ("main".to_owned(), name.to_owned());
        let workers = [("p".to_owned(), worker("prefill-0")), ("d".to_owned(), worker("decode-0"))].into();
        let seen: Vec<_> = flows(&figures, &names(&workers))
            .into_iter()
            .map(|flow| (flow.pool, flow.source, flow.sink, flow.verb, flow.bytes, flow.operations))
            .collect();
        let row = |pool: &str, source: &str, sink: &str, verb, bytes, operations| {
            (pool.to_owned(), source.to_owned(), sink.to_owned(), verb, bytes, operations)
        };
        assert_eq!(
            seen,
            [
                row("main", "prefill-0", "decode-0", "push", 11, 2),
                row("none", "none", "decode-0", "push", 100, 1),
                row("none", "none", "none", NONE, 10_000, 1),
                row("none", "none", "none", "push", 1_000, 1),
            ]
        );
    }
}
