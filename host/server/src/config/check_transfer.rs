//! From written to meant: this host as the mover of KV, and the engines that attach to it.

use std::path::{Path, PathBuf};

use sluice_transfer::protocol::limits::MAX_WAIT_MS;
use toml::Spanned;

use super::check::{Seen, file, name, number};
use super::errors::Problems;
use super::limits;
use super::meant::{Pool, PoolMode, Transfer};
use super::table::Field;
use super::written;

pub(super) fn transfer(path: &Path, written: &written::Transfer, problems: &mut Problems<'_>) -> Transfer {
    Transfer {
        socket: socket(path, &written.socket, problems),
        copy_threads: number("copy_threads", &written.copy_threads, limits::COPY_THREADS, problems),
        other_uids: other_uids(&written.other_uids, problems),
        line: written.span.as_ref().map(|span| problems.source.line(span.start)),
    }
}

fn socket(path: &Path, written: &Field<String>, problems: &mut Problems<'_>) -> PathBuf {
    let socket = file("socket", limits::TRANSFER_SOCKET, path, written, problems);
    let socket = socket.unwrap_or_else(|| PathBuf::from(limits::TRANSFER_SOCKET));
    let bytes = socket.as_os_str().len();
    if let Some(field) = written
        && bytes > limits::MAX_SOCKET_PATH_BYTES
    {
        let what = format!(
            "socket is a path of {bytes} bytes, and a unix socket's has {} at most",
            limits::MAX_SOCKET_PATH_BYTES
        );
        problems.at(
            field.span(),
            what,
            format!("choose a shorter one, such as {:?}", limits::TRANSFER_SOCKET),
        );
    }
    socket
}

fn other_uids(written: &[Spanned<i128>], problems: &mut Problems<'_>) -> Vec<u32> {
    if let Some(extra) = written.get(limits::MAX_OTHER_UIDS) {
        let what = format!("other_uids lists {} users, more than {}", written.len(), limits::MAX_OTHER_UIDS);
        problems.at(extra.span(), what, "list those that engines run as");
    }
    let uid = |field: &Spanned<i128>| number("a uid", &Some(field.clone()), limits::UID, problems);
    written.iter().map(uid).collect()
}

/// The name by which a worker's engine attaches, where it does.
pub(super) fn engine(
    mode: Option<PoolMode>,
    written: &written::Worker,
    problems: &mut Problems<'_>,
) -> Option<String> {
    if let Some(field) = &written.engine {
        name("KV engine", field, problems);
        if mode.is_some_and(|mode| mode != PoolMode::HostManaged) {
            let what = "engine is for workers whose KV this host moves";
            let mode = PoolMode::HostManaged.name();
            problems.at(field.span(), what, format!("take it out, or write mode = {mode:?} for the pool"));
        }
    }
    let field = written.engine.as_ref().or(written.name.as_ref());
    field.filter(|_| mode == Some(PoolMode::HostManaged)).map(|field| field.get_ref().clone())
}

/// All engines attach by one socket, so that their names are told apart over all pools.
pub(super) fn engines(written: &[written::Pool], pools: &[Pool], problems: &mut Problems<'_>) {
    let mut seen = Seen::default();
    let hosted = written.iter().zip(pools).filter(|(_, pool)| pool.mode == PoolMode::HostManaged);
    for worker in hosted.flat_map(|(written, _)| &written.workers) {
        if let Some(field) = worker.engine.as_ref().or(worker.name.as_ref())
            && let Some(first) = seen.line_of_first(field.get_ref(), field, problems)
        {
            let name = field.get_ref();
            let what = format!("engine {name:?} is another worker's already (first on line {first})");
            problems.at(field.span(), what, "give each its own: a worker's engine = \"...\" names it");
        }
    }
}

/// What the host waits for, in its pools, must be what it can wait for.
pub(super) fn waits_fit(written: &[written::Pool], pools: &[Pool], problems: &mut Problems<'_>) {
    let hosted = written.iter().zip(pools).filter(|(_, pool)| pool.mode == PoolMode::HostManaged);
    for (written, pool) in hosted {
        if let Some(field) = &written.decoder_ttl_ms {
            let what =
                format!("decoder_ttl_ms means nothing in pool {:?}, whose KV this host moves", pool.name);
            let cure = "take it out: how long a turn is kept is what the policy's retain says";
            problems.at(field.span(), what, cure);
        }
        for (key, field, ms) in [
            ("kv_lease_ms", &written.kv_lease_ms, pool.kv_lease_ms),
            ("prefill_timeout_ms", &written.prefill_timeout_ms, pool.prefill_timeout_ms),
        ] {
            if let Some(field) = field
                && ms > MAX_WAIT_MS
            {
                let what = format!(
                    "{key} ({ms}) of pool {:?} is longer than a host keeps KV blocks: {MAX_WAIT_MS} ms",
                    pool.name
                );
                problems.at(field.span(), what, format!("write {MAX_WAIT_MS} at most"));
            }
        }
    }
}
