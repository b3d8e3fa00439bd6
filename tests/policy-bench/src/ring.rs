//! What it costs to write each decision down for who asks later.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use sluice::clock::SystemClock;
use sluice::config::{self, Secrets};
use sluice::decisions::{DECISIONS_KEPT, Decisions, Taken};
use sluice::fleet::{Fleet, Pool};
use sluice::ids::Ids;
use sluice::telemetry::labels::Source;
use sluice::telemetry::metrics::Metrics;
use sluice_core::verdict::TransferMode;
use sluice_harness::table::Table;

use crate::rounds::{Case, Plan, measure};

const CONFIG: &str = r#"
[[pool]]
name = "main"
model = "meta-llama/Llama-3.3-70B-Instruct"
mode = "pull"
[[pool.worker]]
name = "prefill-0"
role = "prefill"
url = "http://127.0.0.1:1"
[[pool.worker]]
name = "decode-0"
role = "decode"
url = "http://127.0.0.1:2"
"#;

/// Times laps of the ring, so that every place is written in its turn, as requests do it: the buffers of the last lap are
/// there, and no place is still in the nearest cache.
pub fn run(plan: Plan) -> anyhow::Result<()> {
    let pool = pool()?;
    let (ring, ids) = (Decisions::default(), Ids::default());
    let longest = "r".repeat(1_024);
    let lap = |reason: &str| {
        for _ in 0..DECISIONS_KEPT {
            ring.write(&taken(&pool, &ids, reason));
        }
        anyhow::Ok(())
    };
    let cases = vec![
        Case::new("a short reason", || lap("least expected time")),
        Case::new("the longest reason", || lap(&longest)),
    ];
    let times = measure(cases, plan)?;
    let told = ring.last(usize::MAX, |told| told.prefill.as_deref() == Some("prefill-0"));
    ensure!(told.len() == DECISIONS_KEPT, "{} of {DECISIONS_KEPT} decisions were kept", told.len());
    let mut table = Table::new(&["a decision written down", "ns", "median ns"]);
    let ns = |lap: Duration| format!("{:.0}", lap.as_secs_f64() * 1e9 / DECISIONS_KEPT as f64);
    for time in times {
        table.row([time.name, ns(time.best), ns(time.median)]);
    }
    println!("{table}");
    Ok(())
}

fn pool() -> anyhow::Result<Arc<Pool>> {
    let config = config::parse(Path::new("sluice.toml"), CONFIG)?;
    let fleet = Fleet::new(&config, &Secrets::default(), &SystemClock::shared(), &Metrics::default());
    fleet.pools().first().cloned().context("the configuration has a pool")
}

fn taken<'a>(pool: &'a Arc<Pool>, ids: &Ids, reason: &'a str) -> Taken<'a> {
    Taken {
        at_ms: 1_800_000_000_000,
        request: ids.next(),
        client_request: None,
        pool,
        tenant: "other",
        workload: "default",
        policy: "adaptive",
        module: "adaptive",
        version: "0.1.0",
        generation: 1,
        source: Source::Policy,
        fault: None,
        placement: "disaggregated",
        transfer: Some(TransferMode::Pull),
        prefill: pool.workers.first(),
        decode: pool.workers.last(),
        reason,
        attempt: 0,
        rows: 2,
        prompt_tokens: 2_000,
        cached_tokens: 1_600,
    }
}
