//! What is wrong, why it matters, and what to do: from what was seen, as plain data.

use serde::Serialize;
use sluice_core::facts::Role;
use sluice_core::kv_proof::Verdict;

use super::examine::WorkerSeen;
use super::report::PairSeen;
use super::version::Standing;
use crate::config::{Pool, PoolMode};

/// Above it an engine's clock is named, in milliseconds. Handles are timed by our clock alone, so nothing breaks.
const SKEW_TOLD_ABOVE_MS: i64 = 1_000;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Requests fail, or are slow for it.
    Wrong,
    /// Worth knowing.
    Note,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// `POOL/WORKER`, or both workers of a pair.
    pub place: String,
    /// What is seen.
    pub what: String,
    /// Why it matters.
    pub why: &'static str,
    /// What to do.
    pub cure: String,
}

/// All of a pool, worker by worker, then its pairs.
pub fn of_pool(pool: &Pool, workers: &[&WorkerSeen], pairs: &[&PairSeen]) -> Vec<Finding> {
    let mut findings: Vec<_> = workers.iter().flat_map(|seen| of_worker(pool, seen)).collect();
    findings.extend(versions_differ(pool, workers));
    findings.extend(pairs.iter().filter_map(|pair| of_pair(pair)));
    findings.extend(pairs.iter().filter_map(|pair| way_back(pair)));
    findings.extend(pairs.iter().find_map(|pair| kv_bytes(pool, pair)));
    findings
}

/// The folder of the KV link's socket is missing.
pub fn no_place_to_attach(what: String) -> Finding {
    Finding {
        severity: Severity::Wrong,
        place: "[transfer]".to_owned(),
        what,
        why: "a host with a host-managed pool does not start without it",
        cure: "make the folder, writable by the host's user alone, or set socket to a path in another"
            .to_owned(),
    }
}

struct At<'a>(&'a WorkerSeen);

impl At<'_> {
    fn wrong(&self, what: String, why: &'static str, cure: impl Into<String>) -> Finding {
        self.finding(Severity::Wrong, what, why, cure)
    }

    fn note(&self, what: String, why: &'static str, cure: impl Into<String>) -> Finding {
        self.finding(Severity::Note, what, why, cure)
    }

    fn finding(
        &self,
        severity: Severity,
        what: String,
        why: &'static str,
        cure: impl Into<String>,
    ) -> Finding {
        let place = format!("{}/{}", self.0.pool, self.0.worker);
        Finding { severity, place, what, why, cure: cure.into() }
    }
}

fn of_worker(pool: &Pool, seen: &WorkerSeen) -> Vec<Finding> {
    let at = At(seen);
    if let Some(error) = &seen.unreachable {
        let cure = match seen.connect_ms {
            None => format!("start the engine, or correct its url ({})", seen.url),
            Some(_) if seen.url.starts_with("https://") => {
                "its port takes connections: if the engine serves plain HTTP write http:// in its url; otherwise see \
                 whether ca_file fits its certificate, and whether the engine hangs"
                    .to_owned()
            }
            Some(_) => "its port takes connections, /health gives no answer: if the engine hangs, as its log shows, start \
                        it again; if it serves TLS write https:// in its url"
                .to_owned(),
        };
        return vec![at.wrong(
            format!("cannot be reached: {error}"),
            "it takes no work, and its peers take its part",
            cure,
        )];
    }
    let checks = [health(&at), model(&at, pool), answers(&at, pool), blocks(&at, pool), connector(&at, pool)];
    checks.into_iter().chain([version(&at), tokens(&at), clock(&at)]).flatten().collect()
}

fn health(at: &At<'_>) -> Option<Finding> {
    let status = at.0.health.filter(|status| *status != 200)?;
    let cure = "read the engine's log; an engine that is dead must be started again";
    Some(at.wrong(
        format!("/health answers {status}"),
        "the host sends no work to an engine that is not well",
        cure,
    ))
}

fn model(at: &At<'_>, pool: &Pool) -> Option<Finding> {
    let models = at.0.models.as_ref().filter(|models| !models.contains(&pool.model))?;
    let cure = format!(
        "start the engine with --served-model-name {:?}, or set the pool's model to what it serves",
        pool.model
    );
    let what = format!("serves {}, and the pool says {:?}", models.join(", "), pool.model);
    Some(at.wrong(what, "it answers every request with 404", cure))
}

/// That an engine of another model refuses is said already.
fn answers(at: &At<'_>, pool: &Pool) -> Option<Finding> {
    let error = at.0.answer_error.as_ref().filter(|_| at.0.unfit_for_probes(&pool.model).is_none())?;
    let cure = "read the engine's log; see whether it asks for an API key";
    Some(at.wrong(
        format!("a plain request for one token {error}"),
        "clients' requests will fare no better",
        cure,
    ))
}

fn blocks(at: &At<'_>, pool: &Pool) -> Option<Finding> {
    let has = at.0.block_tokens.filter(|has| *has != pool.block_tokens)?;
    let what =
        format!("has KV blocks of {has} tokens, and the pool says block_tokens = {}", pool.block_tokens);
    let why = match pool.mode {
        PoolMode::HostManaged => "blocks are counted wrong: policies see the wrong room and the wrong reuse",
        _ => {
            "blocks are counted wrong: policies see the wrong room and the wrong reuse. Engines of one pair must have the \
             same block size, or decode fails"
        }
    };
    Some(at.wrong(
        what,
        why,
        format!("set block_tokens = {has}, or start the engine with --block-size {}", pool.block_tokens),
    ))
}

fn connector(at: &At<'_>, pool: &Pool) -> Option<Finding> {
    if !pool.mode.engines_move_kv() || at.0.role == Some(Role::Unified) {
        return None;
    }
    if let Some(error) = &at.0.metrics_error {
        let why = "load is known from this host's own requests alone, and nothing can tell whether KV moves";
        return Some(at.wrong(
            format!("/metrics tells nothing: {error}"),
            why,
            "do not start it with --disable-log-stats",
        ));
    }
    at.0.has_nixl.filter(|has| !has)?;
    let role = if at.0.role == Some(Role::Prefill) { "kv_producer" } else { "kv_consumer" };
    let cure = format!(
        "start it with --kv-transfer-config '{{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"{role}\"}}'; with another \
         connector, go by the probe"
    );
    Some(at.note("counts no NIXL transfers".to_owned(), "an engine without a KV connector moves no KV", cure))
}

fn version(at: &At<'_>) -> Option<Finding> {
    let known = "this host was tested with vLLM 0.32; of 0.33 the source was read";
    let cure = "use vLLM 0.32, or watch this engine's first requests";
    match (at.0.version_standing, &at.0.version) {
        (Some(Standing::TooOld), Some(version)) => {
            Some(at.note(format!("runs vLLM {version}, older than 0.21"), known, cure))
        }
        (Some(Standing::Unknown), Some(version)) => {
            Some(at.note(format!("runs {version:?}, which is not known"), known, cure))
        }
        (None, _) => Some(at.note("tells no version".to_owned(), known, cure)),
        _ => None,
    }
}

fn tokens(at: &At<'_>) -> Option<Finding> {
    let why =
        "token counts before a request are exact only by /tokenize; without it they are estimated from bytes";
    match (at.0.tokenized, at.0.prompt_tokens, &at.0.tokenize_error) {
        (Some(counted), Some(used), _) if counted != used => Some(at.note(
            format!("/tokenize counts {counted} tokens where usage counts {used}"),
            why,
            "see whether the engine was started with another tokenizer or chat template",
        )),
        (None, Some(_), Some(error)) => {
            Some(at.note(format!("/tokenize {error}"), why, "let /tokenize through to the engine"))
        }
        _ => None,
    }
}

fn clock(at: &At<'_>) -> Option<Finding> {
    let skew_ms = at.0.clock_skew_ms.filter(|skew_ms| skew_ms.abs() > SKEW_TOLD_ABOVE_MS)?;
    let way = if skew_ms > 0 { "ahead of" } else { "behind" };
    Some(at.note(
        format!("its clock is at least {} ms {way} this machine's", skew_ms.abs()),
        "handles are timed by this host's clock alone, but logs of both will not line up",
        "run a time service on both machines",
    ))
}

fn versions_differ(pool: &Pool, workers: &[&WorkerSeen]) -> Option<Finding> {
    let mut versions: Vec<&str> = workers.iter().filter_map(|seen| seen.version.as_deref()).collect();
    versions.sort_unstable();
    versions.dedup();
    (pool.mode.engines_move_kv() && versions.len() > 1).then(|| Finding {
        severity: Severity::Note,
        place: pool.name.clone(),
        what: format!("its engines run different versions: {}", versions.join(", ")),
        why: "engines exchange KV in their own formats, which are made for one version",
        cure: "run one version in a pool, but for the time of an upgrade".to_owned(),
    })
}

/// One pair stands for its pool: all have the same model.
fn kv_bytes(pool: &Pool, pair: &PairSeen) -> Option<Finding> {
    let outcome = &pair.proof.as_ref()?.outcome;
    let seen = outcome.other_kv_bytes_per_token(pool.block_tokens, pool.kv_bytes_per_token)?;
    Some(Finding {
        severity: Severity::Note,
        place: pool.name.clone(),
        what: format!(
            "{seen} KV bytes a token moved from {} to {}, and the pool says kv_bytes_per_token = {}",
            pair.prefill, pair.decode, pool.kv_bytes_per_token
        ),
        why: "policies weigh transfers by it: adaptive splits too much or too little, or keeps to one decode worker",
        cure: format!("set kv_bytes_per_token = {seen}"),
    })
}

fn of_pair(pair: &PairSeen) -> Option<Finding> {
    let outcome = &pair.proof.as_ref()?.outcome;
    let (severity, why) = match outcome.verdict() {
        Verdict::Moved => return None,
        Verdict::NotMoved => (
            Severity::Wrong,
            "every prompt is computed twice, or its request fails: disaggregation costs and brings nothing",
        ),
        Verdict::Unproven => {
            (Severity::Note, "a transfer that does not happen shows nowhere but in engines' counters")
        }
    };
    Some(Finding {
        severity,
        place: format!("{}/{} -> {}", pair.pool, pair.prefill, pair.decode),
        what: outcome.to_string(),
        why,
        cure: outcome.cure().unwrap_or_default().to_owned(),
    })
}

/// Of bidirectional pools.
fn way_back(pair: &PairSeen) -> Option<Finding> {
    let back = pair.proof.as_ref()?.back.as_ref()?;
    let (severity, why) = match back.verdict() {
        Verdict::Moved => return None,
        Verdict::NotMoved => (
            Severity::Wrong,
            "next turns of conversations are computed from their beginning, or cost a failed leg first: the pool's mode brings \
             nothing",
        ),
        Verdict::Unproven => {
            (Severity::Note, "a turn that prefill does not fetch shows nowhere but in engines' counters")
        }
    };
    Some(Finding {
        severity,
        place: format!("{}/{} -> {}", pair.pool, pair.decode, pair.prefill),
        what: back.to_string(),
        why,
        cure: back.cure().unwrap_or_default().to_owned(),
    })
}
