//! What the doctor says: as tables for people, as JSON for programs.

use std::fmt;

use serde::Serialize;

use super::examine::WorkerSeen;
use super::findings::{self, Finding, Severity};
use crate::config::{Config, Pool, PoolMode, Worker};
use crate::kv_probe::Proof;
use crate::text_table::TextTable;

/// A pair, and what a probe of it showed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairSeen {
    /// Name of the pool.
    pub pool: String,
    /// Name of the prefill worker.
    pub prefill: String,
    /// Name of the decode worker.
    pub decode: String,
    /// What a probe showed.
    pub proof: Option<Proof>,
    /// Why none was sent.
    pub not_probed: Option<String>,
}

impl PairSeen {
    /// A pair, not probed yet.
    pub fn new(pool: &Pool, prefill: &Worker, decode: &Worker) -> Self {
        Self {
            pool: pool.name.clone(),
            prefill: prefill.name.clone(),
            decode: decode.name.clone(),
            proof: None,
            not_probed: None,
        }
    }
}

/// What the configuration says that cannot be seen from outside.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PoolSeen {
    /// Name.
    pub pool: String,
    /// Served model name.
    pub model: String,
    /// `unified`, `pull` or `host-managed`.
    pub mode: &'static str,
    /// As configured.
    pub block_tokens: u32,
    /// As configured: the engines' flag is not visible.
    pub kv_lease_ms: u64,
    /// As configured: the engines' flag is not visible.
    pub decoder_ttl_ms: u64,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Whether nothing is wrong.
    pub well: bool,
    /// Pools, in the order of the configuration.
    pub pools: Vec<PoolSeen>,
    /// Workers, in that order.
    pub workers: Vec<WorkerSeen>,
    /// Pairs that were, or should have been, probed.
    pub pairs: Vec<PairSeen>,
    /// What is wrong, the worst of each pool first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Judges what was seen.
    pub fn new(config: &Config, workers: Vec<WorkerSeen>, pairs: Vec<PairSeen>) -> Self {
        let mut all = Vec::new();
        for pool in &config.pools {
            let of_pool: Vec<_> = workers.iter().filter(|seen| seen.pool == pool.name).collect();
            let pairs: Vec<_> = pairs.iter().filter(|pair| pair.pool == pool.name).collect();
            let mut findings = findings::of_pool(pool, &of_pool, &pairs);
            findings.sort_by_key(|finding| finding.severity != Severity::Wrong);
            all.extend(findings);
        }
        let pools = config.pools.iter().map(|pool| PoolSeen {
            pool: pool.name.clone(),
            model: pool.model.clone(),
            mode: pool.mode.name(),
            block_tokens: pool.block_tokens,
            kv_lease_ms: pool.kv_lease_ms,
            decoder_ttl_ms: pool.decoder_ttl_ms,
        });
        let well = all.iter().all(|finding| finding.severity != Severity::Wrong);
        Self { well, pools: pools.collect(), workers, pairs, findings: all }
    }

    /// One more.
    pub fn add(&mut self, finding: Finding) {
        self.well &= finding.severity != Severity::Wrong;
        self.findings.push(finding);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for pool in &self.pools {
            writeln!(
                out,
                "pool {}: {}, model {}, blocks of {} tokens",
                pool.pool, pool.mode, pool.model, pool.block_tokens
            )?;
            if pool.mode == PoolMode::HostManaged.name() {
                writeln!(out, "  the host moves its KV, between the engines that are attached to it")?;
            }
            if pool.mode == PoolMode::Pull.name() || pool.mode == PoolMode::Bidirectional.name() {
                writeln!(
                    out,
                    "  not visible from outside, check the engines' flags: kv_lease_duration = {} ms, decoder_kv_blocks_ttl = {} \
                     ms, kv_recompute_threshold",
                    pool.kv_lease_ms, pool.decoder_ttl_ms
                )?;
            }
        }
        writeln!(out, "\n{}", self.worker_table())?;
        if !self.pairs.is_empty() {
            writeln!(out, "\n{}", self.pair_table())?;
        }
        for (finding, number) in self.findings.iter().zip(1..) {
            let severity = if finding.severity == Severity::Wrong { "wrong" } else { "note" };
            write!(out, "\n{number}. {severity}: {}: {}", finding.place, finding.what)?;
            write!(out, "\n   why:  {}\n   cure: {}", finding.why, finding.cure)?;
        }
        let wrong = self.findings.iter().filter(|finding| finding.severity == Severity::Wrong).count();
        let notes = self.findings.len() - wrong;
        let end = if self.findings.is_empty() { "" } else { "\n" };
        write!(out, "{end}\ndoctor: {wrong} wrong, {notes} to note")
    }
}

impl Report {
    fn worker_table(&self) -> TextTable<10> {
        let mut table = TextTable::new(&[
            "worker",
            "role",
            "connects",
            "health",
            "version",
            "model",
            "block",
            "connector",
            "tokenize",
            "clock",
        ]);
        for seen in &self.workers {
            table.row(cells(seen));
        }
        table
    }

    fn pair_table(&self) -> TextTable<3> {
        let mut table = TextTable::new(&["KV from -> to", "holder", "probe"]);
        for pair in &self.pairs {
            let holder = pair.proof.as_ref().and_then(|proof| proof.holder.as_ref());
            let tp = |size: Option<u32>| size.map_or_else(|| "?".to_owned(), |size| size.to_string());
            let holder = holder.map_or_else(dash, |holder| {
                format!("{}, tp {}", holder.transfer_mode.as_deref().unwrap_or("mode ?"), tp(holder.tp_size))
            });
            let what = match (&pair.proof, &pair.not_probed) {
                (Some(proof), _) => format!("{}: {}", proof.outcome.verdict().name(), proof.outcome),
                (None, why) => format!("not probed: {}", why.as_deref().unwrap_or("?")),
            };
            table.row([format!("{}/{} -> {}", pair.pool, pair.prefill, pair.decode), holder, what]);
            if let Some(back) = pair.proof.as_ref().and_then(|proof| proof.back.as_ref()) {
                let way = format!("{}/{} -> {}", pair.pool, pair.decode, pair.prefill);
                table.row([way, dash(), format!("{}: {back}", back.verdict().name())]);
            }
        }
        table
    }
}

fn dash() -> String {
    "-".to_owned()
}

fn cells(seen: &WorkerSeen) -> [String; 10] {
    let name = format!("{}/{}", seen.pool, seen.worker);
    let role = seen.role.map_or("?", |role| role.name()).to_owned();
    if seen.unreachable.is_some() {
        return [name, role, "no".to_owned(), dash(), dash(), dash(), dash(), dash(), dash(), dash()];
    }
    let figure = |value: Option<String>| value.unwrap_or_else(dash);
    let version = seen.version.as_ref().zip(seen.version_standing);
    let tokenize = match (seen.tokenized, seen.prompt_tokens) {
        (Some(counted), Some(used)) if counted == used => "agrees".to_owned(),
        (Some(counted), Some(used)) => format!("{counted}, usage {used}"),
        (Some(counted), None) => format!("{counted}, no usage"),
        (None, _) => dash(),
    };
    [
        name,
        role,
        figure(seen.connect_ms.map(|ms| format!("{ms} ms"))),
        figure(seen.health.map(|status| status.to_string())),
        figure(version.map(|(version, standing)| format!("{version} ({})", standing.name()))),
        figure(seen.models.as_ref().map(|models| models.join(", "))),
        figure(seen.block_tokens.map(|tokens| tokens.to_string())),
        figure(seen.has_nixl.map(|has| if has { "nixl" } else { "none seen" }.to_owned())),
        tokenize,
        figure(seen.clock_skew_ms.map(|ms| if ms == 0 { "agrees".to_owned() } else { format!("{ms:+} ms") })),
    ]
}
