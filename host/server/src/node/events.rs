//! What the node tells, logged and counted. What may repeat without end is logged once for each of its kind.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use sluice_transfer::node::NodeEvent;
use tokio::sync::Notify;

use crate::telemetry::Telemetry;

/// What becomes of each event. Called by the threads of engines' links, so nothing here waits.
pub(super) fn teller(
    telemetry: Arc<Telemetry>,
    changed: Arc<Notify>,
) -> Arc<dyn Fn(NodeEvent) + Send + Sync> {
    let counted: Family<[(&'static str, &'static str); 1], Counter> =
        telemetry.metrics.register(|registry| {
            let family = Family::default();
            let help =
                "Engines at the KV link: attached, detached, refused, invalid words, not_accepting, stopped, by event";
            registry.register("kv_link_events", help, family.clone());
            family
        });
    for event in ["attached", "detached", "refused", "invalid", "not_accepting", "stopped"] {
        drop(counted.get_or_create(&[("event", event)]));
    }
    Arc::new(move |event| {
        let name = tell(&telemetry, &event);
        counted.get_or_create(&[("event", name)]).inc();
        if matches!(event, NodeEvent::Attached(_) | NodeEvent::Detached { .. }) {
            changed.notify_one();
        }
    })
}

/// Logs an event; its name in metrics.
fn tell(telemetry: &Telemetry, event: &NodeEvent) -> &'static str {
    match event {
        NodeEvent::Attached(engine) => {
            let layout = &engine.layout;
            tracing::info!(
                engine = engine.name,
                ranks = layout.tp_size,
                blocks = layout.blocks,
                block_tokens = layout.block_tokens,
                "an engine is attached"
            );
            "attached"
        }
        NodeEvent::Detached { name, why } => {
            tracing::warn!(engine = name, "an engine is attached no more: {why}");
            "detached"
        }
        // Of one that comes again by itself, too: its next tries say the same.
        NodeEvent::Refused { pid, text, .. } => {
            telemetry.warn_once(&format!("kv_link refused {text}"), || {
                format!("process {pid} was not let in at the KV link: {text}")
            });
            "refused"
        }
        NodeEvent::Invalid { name, text } => {
            telemetry.warn_once(&format!("kv_link invalid {name}"), || {
                format!("engine {name:?} described a transfer that cannot be: {text}")
            });
            "invalid"
        }
        NodeEvent::Stopped => {
            telemetry.metrics.task_panic("kv_exchange");
            tracing::error!(
                "the exchange of KV has failed: no KV is moved any more, decode computes prompts; start this host anew, \
                 and report the panic above"
            );
            "stopped"
        }
        NodeEvent::NotAccepting(kind) => {
            telemetry.warn_once(&format!("kv_link not_accepting {kind}"), || {
                format!("the system lets no engine connect to the KV link: {kind}")
            });
            "not_accepting"
        }
    }
}
