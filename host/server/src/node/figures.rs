//! The exchange's figures in `/metrics`, read when they are asked for.

use std::collections::HashMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use sluice_engine_sdk::wire::Refused;
use sluice_transfer::node::NodeHandle;

use super::status::{self, FlowStatus, HOLD_ENDS, hold_end_name, reason_name, reasons, refused_name};
use crate::config::Config;
use crate::telemetry::Telemetry;

/// Shows the figures of this node.
pub(super) fn register(telemetry: &Telemetry, config: &Config, node: &NodeHandle) {
    let collected = Collected { node: node.clone(), workers: status::workers(config) };
    telemetry.metrics.register(|registry| registry.register_collector(Box::new(collected)));
}

#[derive(Debug)]
struct Collected {
    node: NodeHandle,
    /// Pool and worker by the name of their engine.
    workers: HashMap<String, (String, String)>,
}

/// Why holds and transfers are not begun.
const REFUSALS: [Refused; 5] =
    [Refused::Full, Refused::Used, Refused::Invalid, Refused::NoSource, Refused::Unproven];

type FlowLabels = [(&'static str, String); 5];

/// Name, help, and which of a flow's figures.
type OfFlow = (&'static str, &'static str, fn(&FlowStatus) -> u64);

const FLOW_COUNTERS: [OfFlow; 5] = [
    ("transfer_bytes", "KV bytes that this host moved, by source and sink", |flow| flow.bytes),
    (
        "transfer_overlapped_bytes",
        "KV bytes that this host moved while their prefill went on, by source and sink",
        |flow| flow.overlapped_bytes,
    ),
    ("transfer_operations", "Copies of KV that ended well, by source and sink", |flow| flow.operations),
    (
        "transfer_operations_failed",
        "Copies of KV that failed or were cancelled, by source and sink",
        |flow| flow.operations_failed,
    ),
    ("transfer_deadline_misses", "Transfers that a deadline ended, by source and sink", |flow| {
        flow.deadline_misses
    }),
];

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (engines, figures) = (self.node.engines(), self.node.figures());
        let flows = status::flows(&figures, &status::names(&self.workers));
        for (name, help, of) in FLOW_COUNTERS {
            counters(&mut encoder, (name, help), flows.iter().map(|flow| (labels(flow), of(flow))))?;
        }
        let mut moving = encoder.encode_descriptor(
            "transfer_moving_seconds",
            "How long copies of KV were under way or waiting, by source and sink: bytes by this are the speed while it moves",
            None,
            MetricType::Counter,
        )?;
        for flow in &flows {
            let seconds = flow.moving_ms as f64 / 1_000.0;
            moving.encode_family(&labels(flow))?.encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
        }
        let queued = flows.iter().map(|flow| (labels(flow), flow.queued));
        gauges(
            &mut encoder,
            ("transfer_queue", "Copies of KV under way or waiting, by source and sink"),
            queued,
        )?;
        // What has not happened yet is 0, so that its first time is a rise.
        let of = |reason| figures.failed.get(&reason).copied().unwrap_or(0);
        let failed = reasons().map(|reason| ([("reason", reason_name(reason))], of(reason)));
        counters(&mut encoder, ("kv_transfers_failed", "Transfers that failed, by reason"), failed)?;
        let of = |why| figures.refused.get(&why).copied().unwrap_or(0);
        let refused = REFUSALS.into_iter().map(|why| ([("reason", refused_name(why))], of(why)));
        let help = "Holds and transfers of engines that were not begun, so that they compute, by reason";
        counters(&mut encoder, ("kv_transfers_refused", help), refused)?;
        let of = |end| figures.holds.get(&end).copied().unwrap_or(0);
        let ended = HOLD_ENDS.into_iter().map(|end| ([("end", hold_end_name(end))], of(end)));
        counters(&mut encoder, ("transfer_holds_ended", "Holds of KV blocks that ended, by how"), ended)?;
        for (name, help, count) in [
            ("kv_transfers_completed", "Transfers whose consumers have it all", figures.completed),
            ("transfer_commands_refused", "Commands that found no room", figures.commands_refused),
            ("transfer_posts_refused", "Copies that no plan could be made of", figures.posts_refused),
            (
                "transfer_messages_dropped",
                "Messages between engines that found no room",
                figures.messages_dropped,
            ),
            (
                "transfer_holds_without_proofs",
                "Kept turns that nobody can get, since there was no room for proofs",
                self.node.holds_without_proofs(),
            ),
        ] {
            let mut counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        for (name, help, count) in [
            ("transfer_engines", "Engines attached to this host with all their ranks", engines.len()),
            ("transfer_holds", "Holds of KV blocks that have begun and not ended", self.node.holds()),
            (
                "transfer_commands_waiting",
                "Commands that the exchange has not obeyed yet",
                figures.commands_waiting,
            ),
        ] {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&(count as u64))?;
        }
        Ok(())
    }
}

fn labels(flow: &FlowStatus) -> FlowLabels {
    [
        ("pool", flow.pool.clone()),
        ("source", flow.source.clone()),
        ("sink", flow.sink.clone()),
        ("verb", flow.verb.to_owned()),
        ("direction", flow.direction.to_owned()),
    ]
}

fn counters<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    values: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    values.into_iter().try_for_each(|(labels, value)| {
        family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
    })
}

fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    values: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    values.into_iter().try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value))
}
