//! What `sluice fleet` shows of a host that moves KV: the engines that are attached, and what moved between whom.

use serde::Deserialize;

use crate::text_table::TextTable;

/// As `/admin/fleet` tells it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Transfer {
    engines: Vec<Engine>,
    flows: Vec<Flow>,
    completed: u64,
    failed: std::collections::BTreeMap<String, u64>,
    holds: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Engine {
    name: String,
    worker: Option<String>,
    role: String,
    model: String,
    blocks: u32,
    block_tokens: u32,
    slab_bytes: u64,
    pids: Vec<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Flow {
    source: String,
    sink: String,
    verb: String,
    direction: String,
    bytes: u64,
    overlapped_bytes: u64,
    operations: u64,
    operations_failed: u64,
    deadline_misses: u64,
}

const MIB: f64 = 1024.0 * 1024.0;

/// Tables below that of the workers.
pub(super) fn shown(transfer: &Transfer) -> String {
    let mut engines =
        TextTable::new(&["attached engine", "worker", "role", "model", "blocks", "slab", "pid"]);
    for engine in &transfer.engines {
        let pids: Vec<_> = engine.pids.iter().map(u32::to_string).collect();
        engines.row([
            engine.name.clone(),
            engine.worker.clone().unwrap_or_else(|| "none".to_owned()),
            engine.role.clone(),
            engine.model.clone(),
            format!("{} of {} tokens", engine.blocks, engine.block_tokens),
            mib(engine.slab_bytes),
            pids.join(", "),
        ]);
    }
    let mut flows = TextTable::new(&[
        "KV from -> to",
        "by",
        "direction",
        "moved",
        "while prefilling",
        "copies",
        "failed",
        "late",
    ]);
    for flow in transfer.flows.iter().filter(|flow| flow.operations + flow.operations_failed > 0) {
        flows.row([
            format!("{} -> {}", flow.source, flow.sink),
            flow.verb.clone(),
            flow.direction.clone(),
            mib(flow.bytes),
            mib(flow.overlapped_bytes),
            flow.operations.to_string(),
            flow.operations_failed.to_string(),
            flow.deadline_misses.to_string(),
        ]);
    }
    let failed: u64 = transfer.failed.values().sum();
    let why: Vec<_> = transfer.failed.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join(", ")) };
    let (done, holds) = (transfer.completed, transfer.holds);
    format!("\n\n{engines}\n\n{flows}\ntransfers: {done} completed, {failed} failed{why}; {holds} holds\n")
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_and_flows_are_shown() {
        let transfer: Transfer = serde_json::from_value(serde_json::json!({
            "engines": [
                {"name": "prefill-0", "worker": "main/prefill-0", "role": "prefill", "model": "m", "blocks": 64,
                 "block_tokens": 16, "slab_bytes": 3_145_728, "pids": [7, 8]},
                {"name": "stray", "worker": null, "role": "unified", "model": "m"},
            ],
            "flows": [
                {"source": "prefill-0", "sink": "decode-0", "verb": "push", "direction": "prefill-to-decode",
                 "bytes": 2_097_152, "overlapped_bytes": 1_572_864, "operations": 4, "operations_failed": 1},
                {"source": "gone", "sink": "gone", "verb": "gone", "direction": "gone"},
            ],
            "completed": 3, "failed": {"too_slow": 1, "peer_lost": 2}, "holds": 1,
        }))
        .expect("as it is told");
        let expected = "\n\n\
             attached engine  worker          role     model  blocks           slab     pid\n\
             prefill-0        main/prefill-0  prefill  m      64 of 16 tokens  3.0 MiB  7, 8\n\
             stray            none            unified  m      0 of 0 tokens    0.0 MiB\n\
             \n\
             KV from -> to          by    direction          moved    while prefilling  copies  failed  late\n\
             prefill-0 -> decode-0  push  prefill-to-decode  2.0 MiB  1.5 MiB           4       1       0\n\
             transfers: 3 completed, 3 failed (peer_lost 2, too_slow 1); 1 holds\n";
        assert_eq!(shown(&transfer), expected);
    }
}
