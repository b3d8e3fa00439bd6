//! What `sluice fleet` shows of a host that moves KV: the engines that are attached, and what moved between whom.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::text_table::{TextTable, one_line};

/// As `/admin/fleet` tells it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Transfer {
    socket: String,
    engines: Vec<Engine>,
    flows: Vec<Flow>,
    completed: u64,
    failed: BTreeMap<String, u64>,
    holds: u64,
    kept_turns: u64,
    kept_tokens: u64,
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
    moving_ms: u64,
    deadline_misses: u64,
}

const MIB: f64 = 1024.0 * 1024.0;
/// Units of all flows, by the largest of them.
const UNITS: [(&str, f64); 2] = [("GB moved", 1e9), ("MB moved", 1e6)];
const BYTES_PER_MS_OF_A_GB_PER_S: f64 = 1e6;

/// Tables below that of the workers.
pub(super) fn shown(transfer: &Transfer) -> String {
    let (done, holds) = (transfer.completed, transfer.holds);
    let failed: u64 = transfer.failed.values().sum();
    let why: Vec<_> = transfer.failed.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join(", ")) };
    format!(
        "{}\n\n{}transfers: {done} completed, {failed} failed{why}\nholds:     {holds} now; {} kept turns of {} tokens",
        engines(transfer),
        flows(transfer),
        transfer.kept_turns,
        transfer.kept_tokens
    )
}

fn engines(transfer: &Transfer) -> String {
    let socket = one_line(&transfer.socket);
    if transfer.engines.is_empty() {
        return format!("no engine is attached; they attach at {socket}");
    }
    let mut table =
        TextTable::new(&["attached engine", "worker", "role", "model", "KV blocks", "KV memory", "pid"]);
    for engine in &transfer.engines {
        let pids: Vec<_> = engine.pids.iter().map(u32::to_string).collect();
        table.row([
            engine.name.clone(),
            engine.worker.clone().unwrap_or_else(|| "none has this name".to_owned()),
            engine.role.clone(),
            engine.model.clone(),
            format!("{} of {} tokens", engine.blocks, engine.block_tokens),
            format!("{:.1} MiB", engine.slab_bytes as f64 / MIB),
            pids.join(", "),
        ]);
    }
    format!("{table}\nattached at {socket}")
}

/// Figures of one unit stand one above the other.
fn flows(transfer: &Transfer) -> String {
    let shown = || transfer.flows.iter().filter(|flow| flow.operations + flow.operations_failed > 0);
    let most = shown().map(|flow| flow.bytes).max().unwrap_or(0) as f64;
    let (heading, unit) = UNITS.into_iter().find(|(_, unit)| most >= *unit).unwrap_or(UNITS[1]);
    let mut table = TextTable::new(&[
        "KV from -> to",
        "by",
        "direction",
        heading,
        "GB/s moving",
        "behind prefill",
        "copies",
        "failed",
        "late",
    ]);
    for flow in shown() {
        table.row([
            format!("{} -> {}", flow.source, flow.sink),
            flow.verb.clone(),
            flow.direction.clone(),
            format!("{:>8.3}", flow.bytes as f64 / unit),
            format!("{:>11}", or_dash(speed(flow))),
            format!("{:>14}", or_dash(hidden(flow))),
            format!("{:>6}", flow.operations),
            format!("{:>6}", flow.operations_failed),
            format!("{:>4}", flow.deadline_misses),
        ]);
    }
    if shown().next().is_none() { "no KV was moved yet\n".to_owned() } else { format!("{table}\n") }
}

/// Shorter times say nothing about a speed.
const SPEED_FROM_MS: u64 = 20;

fn or_dash(figure: Option<String>) -> String {
    figure.unwrap_or_else(|| "-".to_owned())
}

fn speed(flow: &Flow) -> Option<String> {
    let speed = flow.bytes as f64 / flow.moving_ms as f64 / BYTES_PER_MS_OF_A_GB_PER_S;
    (flow.moving_ms >= SPEED_FROM_MS && flow.bytes > 0).then(|| format!("{speed:.1}"))
}

fn hidden(flow: &Flow) -> Option<String> {
    let share = 100.0 * flow.overlapped_bytes as f64 / flow.bytes as f64;
    (flow.bytes > 0).then(|| format!("{share:.0}%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_and_flows_are_shown() {
        let transfer: Transfer = serde_json::from_value(serde_json::json!({
            "socket": "/run/sluice/kv.sock",
            "engines": [
                {"name": "prefill-0", "worker": "main/prefill-0", "role": "prefill", "model": "m", "blocks": 64,
                 "block_tokens": 16, "slab_bytes": 3_145_728, "pids": [7, 8]},
                {"name": "stray", "worker": null, "role": "unified", "model": "m"},
            ],
            "flows": [
                {"source": "prefill-0", "sink": "decode-0", "verb": "push", "direction": "prefill-to-decode",
                 "bytes": 12_345_678_901_u64, "overlapped_bytes": 9_876_543_210_u64, "moving_ms": 2_000, "operations": 4,
                 "operations_failed": 1},
                {"source": "decode-0", "sink": "prefill-0", "verb": "pull", "direction": "decode-to-prefill",
                 "bytes": 2_000_000, "operations": 1},
                {"source": "none", "sink": "none", "verb": "none", "direction": "none"},
            ],
            "completed": 3, "failed": {"too_slow": 1, "peer_lost": 2}, "holds": 5, "kept_turns": 2, "kept_tokens": 900,
        }))
        .expect("as it is told");
        let expected = "\
             attached engine  worker              role     model  KV blocks        KV memory  pid\n\
             prefill-0        main/prefill-0      prefill  m      64 of 16 tokens  3.0 MiB    7, 8\n\
             stray            none has this name  unified  m      0 of 0 tokens    0.0 MiB\n\
             attached at /run/sluice/kv.sock\n\
             \n\
             KV from -> to          by    direction          GB moved  GB/s moving  behind prefill  copies  failed  late\n\
             prefill-0 -> decode-0  push  prefill-to-decode    12.346          6.2             80%       4       1     0\n\
             decode-0 -> prefill-0  pull  decode-to-prefill     0.002            -              0%       1       0     0\n\
             transfers: 3 completed, 3 failed (peer_lost 2, too_slow 1)\n\
             holds:     5 now; 2 kept turns of 900 tokens";
        assert_eq!(shown(&transfer), expected);
    }

    #[test]
    fn little_is_told_in_megabytes() {
        let flow = Flow { bytes: 170_496, operations: 2, ..Flow::default() };
        let told = flows(&Transfer { flows: vec![flow], ..Transfer::default() });
        assert!(told.contains("MB moved") && told.contains("   0.170 "), "{told}");
    }

    #[test]
    fn where_nothing_is_it_is_said() {
        let transfer = Transfer { socket: "/run/sluice/kv.sock".to_owned(), ..Transfer::default() };
        assert_eq!(
            shown(&transfer),
            "no engine is attached; they attach at /run/sluice/kv.sock\n\nno KV was moved yet\n\
             transfers: 0 completed, 0 failed\nholds:     0 now; 0 kept turns of 0 tokens"
        );
    }
}
