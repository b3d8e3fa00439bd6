//! From written to meant: pools and their workers.

use std::path::Path;

use sluice_core::facts::Role;
use toml::Spanned;

use super::check::{Seen, file, name, number, optional};
use super::check_transfer;
use super::errors::Problems;
use super::limits;
use super::meant::{Pool, PoolMode, StreamsBy, Worker, worker_id};
use super::table::Field;
use super::url::WorkerUrl;
use super::written;
use crate::spelling;

/// Ways to share the work of a request that are known, but not to this version.
const LATER_MODES: [&str; 1] = ["push"];

const ROLES: [Role; 3] = [Role::Unified, Role::Prefill, Role::Decode];

pub(super) fn pools(path: &Path, written: &[written::Pool], problems: &mut Problems<'_>) -> Vec<Pool> {
    let (mut names, mut models) = (Seen::default(), Seen::default());
    if let Some(extra) = written.get(limits::MAX_POOLS) {
        let what = format!("the file has {} pools, more than {}", written.len(), limits::MAX_POOLS);
        problems.at(extra.span.clone(), what, "run a second host for some of them");
    }
    for pool in written {
        if let Some(field) = &pool.name
            && let Some(first) = names.line_of_first(field.get_ref(), field, problems)
        {
            let what = format!("pool {:?} is named twice (first on line {first})", field.get_ref());
            problems.at(field.span(), what, "give each pool its own name");
        }
        if let Some(field) = &pool.model
            && let Some(first) = models.line_of_first(field.get_ref(), field, problems)
        {
            let what = format!(
                "model {:?} is served by another pool already (its model is on line {first})",
                field.get_ref()
            );
            let cure = "in this version one pool serves a model: put all its workers into that pool";
            problems.at(field.span(), what, cure);
        }
    }
    written.iter().map(|written| pool(path, written, problems)).collect()
}

fn pool(path: &Path, written: &written::Pool, problems: &mut Problems<'_>) -> Pool {
    if let Some(field) = &written.name {
        name("pool", field, problems);
    }
    if let Some(field) = &written.model {
        model(field, problems);
    }
    let mode = written.mode.as_ref().and_then(|field| mode(field, problems));
    let title = text(&written.name);
    let label = if title.is_empty() { "this pool".to_owned() } else { format!("pool {title:?}") };

    duplicates(&label, &written.workers, problems);
    if let (Some(mode), Some(field)) = (mode, &written.mode) {
        roles_fit(&label, mode, field, &written.workers, problems);
    }
    if let Some(extra) = written.workers.get(limits::MAX_WORKERS) {
        let what =
            format!("{label} has {} workers, more than {}", written.workers.len(), limits::MAX_WORKERS);
        problems.at(extra.span.clone(), what, "run a second host for some of them");
    }
    Pool {
        block_tokens: number("block_tokens", &written.block_tokens, limits::BLOCK_TOKENS, problems),
        kv_bytes_per_token: number(
            "kv_bytes_per_token",
            &written.kv_bytes_per_token,
            limits::KV_BYTES_PER_TOKEN,
            problems,
        ),
        kv_bytes_per_token_is_set: written.kv_bytes_per_token.is_some(),
        kv_lease_ms: number("kv_lease_ms", &written.kv_lease_ms, limits::KV_LEASE_MS, problems),
        decoder_ttl_ms: number("decoder_ttl_ms", &written.decoder_ttl_ms, limits::DECODER_TTL_MS, problems),
        prefill_timeout_ms: number(
            "prefill_timeout_ms",
            &written.prefill_timeout_ms,
            limits::PREFILL_TIMEOUT_MS,
            problems,
        ),
        decode_first_byte_ms: number(
            "decode_first_byte_ms",
            &written.decode_first_byte_ms,
            limits::DECODE_FIRST_BYTE_MS,
            problems,
        ),
        max_model_len: optional("max_model_len", &written.max_model_len, limits::MAX_MODEL_LEN, problems),
        streams: streams(mode, written, problems),
        probe_kv: written.probe_kv.as_ref().is_none_or(|field| *field.get_ref()),
        engine_api_key_file: file(
            "engine_api_key_file",
            "engines.key",
            path,
            &written.engine_api_key_file,
            problems,
        ),
        workers: written
            .workers
            .iter()
            .filter_map(|written| worker((&title, mode), written, problems))
            .collect(),
        model: text(&written.model),
        mode: mode.unwrap_or(PoolMode::Unified),
        name: title,
    }
}

/// A worker, or `None` when there is a problem with what it cannot do without.
fn worker(
    (pool, mode): (&str, Option<PoolMode>),
    written: &written::Worker,
    problems: &mut Problems<'_>,
) -> Option<Worker> {
    if let Some(field) = &written.name {
        name("worker", field, problems);
    }
    let role = written.role.as_ref().and_then(|field| role(field, problems));
    if let (Some(field), Some(role)) = (&written.can_prefill, role)
        && role != Role::Decode
    {
        problems.at(
            field.span(),
            format!("can_prefill is for decode workers, and this one is {}", role.name()),
            "take it out: prefill and unified workers prefill anyway",
        );
    }
    let url = written.url.as_ref().and_then(|field| {
        let parsed = WorkerUrl::parse(field.get_ref());
        parsed.map_err(|fault| problems.at(field.span(), fault.to_string(), fault.cure())).ok()
    });
    let zone = number("zone", &written.zone, limits::ZONE, problems);
    let name = text(&written.name);
    let engine = check_transfer::engine(mode, written, problems);
    Some(Worker {
        engine,
        id: worker_id(pool, &name),
        role: role?,
        url: url?,
        can_prefill: written.can_prefill.as_ref().is_some_and(|field| *field.get_ref()),
        zone,
        line: problems.source.line(written.span.start),
        name,
    })
}

/// Names and addresses that stand twice in one pool.
fn duplicates(label: &str, workers: &[written::Worker], problems: &mut Problems<'_>) {
    let (mut names, mut urls) = (Seen::default(), Seen::default());
    for worker in workers {
        if let Some(field) = &worker.name
            && let Some(first) = names.line_of_first(field.get_ref(), field, problems)
        {
            let what =
                format!("worker {:?} is named twice in {label} (first on line {first})", field.get_ref());
            problems.at(field.span(), what, "give each worker of a pool its own name");
        }
        if let Some(field) = &worker.url
            && let Ok(url) = WorkerUrl::parse(field.get_ref())
            && let Some(first) = urls.line_of_first(&url.authority, field, problems)
        {
            let what = format!("{url} stands twice in {label} (first on line {first})");
            problems.at(
                field.span(),
                what,
                "an engine is one worker: take one of them out, or correct its port",
            );
        }
    }
}

/// Whether a pool's workers can do what its mode asks of them. Only said when every role is known, so that
/// a misspelt role gives one message.
fn roles_fit(
    label: &str,
    mode: PoolMode,
    field: &Spanned<String>,
    workers: &[written::Worker],
    problems: &mut Problems<'_>,
) {
    let roles: Option<Vec<(Role, &Spanned<String>)>> = workers
        .iter()
        .map(|worker| worker.role.as_ref().and_then(|field| Some((known_role(field.get_ref())?, field))))
        .collect();
    let Some(roles) = roles.filter(|roles| !roles.is_empty()) else { return };
    match mode {
        PoolMode::Unified => {
            for (role, field) in roles.into_iter().filter(|(role, _)| *role != Role::Unified) {
                problems.at(
                    field.span(),
                    format!("a unified pool has no {} workers", role.name()),
                    "write role = \"unified\", or mode = \"pull\" for the pool",
                );
            }
        }
        PoolMode::Pull | PoolMode::Bidirectional | PoolMode::HostManaged => {
            for wanted in [Role::Prefill, Role::Decode] {
                if roles.iter().all(|(role, _)| *role != wanted) {
                    problems.at(
                        field.span(),
                        format!("{label} is a {} pool without a {} worker", mode.name(), wanted.name()),
                        format!(
                            "add a [[pool.worker]] with role = {:?}, or write mode = \"unified\" and role = \
                             \"unified\" for its workers",
                            wanted.name()
                        ),
                    );
                }
            }
        }
    }
}

fn mode(field: &Spanned<String>, problems: &mut Problems<'_>) -> Option<PoolMode> {
    let written = field.get_ref();
    let known = PoolMode::ALL.into_iter().find(|mode| mode.name() == written);
    if known.is_none() {
        let names = || PoolMode::ALL.into_iter().map(PoolMode::name);
        if LATER_MODES.contains(&written.as_str()) {
            let what = format!("mode {written:?} is not in this version");
            problems.at(field.span(), what, format!("write one of: {}", spelling::listed(names())));
        } else {
            problems.at(field.span(), format!("{written:?} is no mode"), spelling::choice(written, names));
        }
    }
    known
}

fn role(field: &Spanned<String>, problems: &mut Problems<'_>) -> Option<Role> {
    let written = field.get_ref();
    let known = known_role(written);
    if known.is_none() {
        let names = || ROLES.into_iter().map(Role::name);
        problems.at(field.span(), format!("{written:?} is no role"), spelling::choice(written, names));
    }
    known
}

/// Who makes a pool's streams.
fn streams(mode: Option<PoolMode>, written: &written::Pool, problems: &mut Problems<'_>) -> StreamsBy {
    let Some(field) = &written.streams else { return StreamsBy::Engine };
    let names = || StreamsBy::ALL.into_iter().map(StreamsBy::name);
    let Some(by) = StreamsBy::ALL.into_iter().find(|by| by.name() == field.get_ref()) else {
        let what = format!("{:?} does not say who makes streams", field.get_ref());
        problems.at(field.span(), what, spelling::choice(field.get_ref(), names));
        return StreamsBy::Engine;
    };
    if by == StreamsBy::Host
        && let Some(mode) = mode.filter(|mode| *mode != PoolMode::Bidirectional)
    {
        let what = format!("streams = {:?} means nothing in a {} pool", by.name(), mode.name());
        problems.at(
            field.span(),
            what,
            "take it out: only bidirectional pools have engines whose streams may tell nothing",
        );
    }
    by
}

fn known_role(written: &str) -> Option<Role> {
    ROLES.into_iter().find(|role| role.name() == written)
}

/// A model's name is whatever engines were told to serve it as; only what breaks logs and metrics is refused.
fn model(field: &Spanned<String>, problems: &mut Problems<'_>) {
    let text = field.get_ref();
    let is_fine = (1..=limits::MAX_MODEL_BYTES).contains(&text.len())
        && !text.chars().any(char::is_control)
        && text.trim() == text;
    if !is_fine {
        problems.at(
            field.span(),
            format!("model {text:?} is no model name"),
            format!(
                "write the name that the engines serve, 1 to {} bytes, without line breaks or outer spaces",
                limits::MAX_MODEL_BYTES
            ),
        );
    }
}

fn text(field: &Field<String>) -> String {
    field.as_ref().map(|field| field.get_ref().clone()).unwrap_or_default()
}
