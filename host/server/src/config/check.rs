//! From written to meant: everything but the pools.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use sluice_core::workload::SECRET_HEADERS;
use toml::Spanned;

use super::errors::Problems;
use super::limits::{self, Bounds};
use super::meant::{Config, Policy, PolicyCache, Server, Sessions};
use super::table::Field;
use super::written::{self, Written};
use super::{check_holds, check_pools, check_telemetry, check_tenants, check_tls, check_transfer};

/// What a written configuration means. Where there was a problem, a default stands in: the result is good
/// only when no problem was found.
pub(super) fn check(path: &Path, written: &Written, problems: &mut Problems<'_>) -> Config {
    let found_before = problems.count();
    let config = Config {
        server: server(path, &written.server, problems),
        upstream: check_tls::upstream(path, &written.upstream, problems),
        policy: policy(path, &written.policy, problems),
        sessions: sessions(path, &written.sessions, problems),
        telemetry: check_telemetry::telemetry(&written.telemetry, problems),
        transfer: check_transfer::transfer(path, &written.transfer, problems),
        tenants: check_tenants::tenants(path, &written.tenants, problems),
        pools: check_pools::pools(path, &written.pools, problems),
        path: path.to_path_buf(),
    };
    if problems.count() == found_before {
        check_tls::workers_are_known(written, &config.upstream, &config.pools, problems);
        check_holds::leases_outlast_connecting(written, &config, problems);
        check_holds::turns_can_be_fetched(written, &config, problems);
        check_transfer::engines(&written.pools, &config.pools, problems);
        check_transfer::waits_fit(&written.pools, &config.pools, problems);
    }
    config
}

fn server(path: &Path, written: &written::Server, problems: &mut Problems<'_>) -> Server {
    let found_before = problems.count();
    let server = Server {
        listen: address("listen", &written.listen, limits::LISTEN, problems),
        admin_listen: address("admin_listen", &written.admin_listen, limits::ADMIN_LISTEN, problems),
        admin_token_file: file("admin_token_file", "admin.token", path, &written.admin_token_file, problems),
        drain_delay_ms: number("drain_delay_ms", &written.drain_delay_ms, limits::DRAIN_DELAY_MS, problems),
        drain_timeout_ms: number(
            "drain_timeout_ms",
            &written.drain_timeout_ms,
            limits::DRAIN_TIMEOUT_MS,
            problems,
        ),
        max_body_bytes: number("max_body_bytes", &written.max_body_bytes, limits::MAX_BODY_BYTES, problems),
        header_timeout_ms: number(
            "header_timeout_ms",
            &written.header_timeout_ms,
            limits::HEADER_TIMEOUT_MS,
            problems,
        ),
        request_timeout_ms: number(
            "request_timeout_ms",
            &written.request_timeout_ms,
            limits::REQUEST_TIMEOUT_MS,
            problems,
        ),
        connect_timeout_ms: number(
            "connect_timeout_ms",
            &written.connect_timeout_ms,
            limits::CONNECT_TIMEOUT_MS,
            problems,
        ),
        stream_silence_ms: number(
            "stream_silence_ms",
            &written.stream_silence_ms,
            limits::STREAM_SILENCE_MS,
            problems,
        ),
        max_in_flight: number("max_in_flight", &written.max_in_flight, limits::MAX_IN_FLIGHT, problems),
        max_queued: number("max_queued", &written.max_queued, limits::MAX_QUEUED, problems),
        queue_timeout_ms: number(
            "queue_timeout_ms",
            &written.queue_timeout_ms,
            limits::QUEUE_TIMEOUT_MS,
            problems,
        ),
        tls: check_tls::server(path, written, problems),
    };
    loopback_or_token(written, &server, problems);
    if problems.count() == found_before {
        server_fits_together(written, &server, problems);
    }
    server
}

/// Without a token the admin listener trusts whoever reaches it.
fn loopback_or_token(written: &written::Server, server: &Server, problems: &mut Problems<'_>) {
    let address = server.admin_listen;
    if let Some(field) = &written.admin_listen
        && !address.ip().to_canonical().is_loopback()
        && server.admin_token_file.is_none()
    {
        let cure = format!(
            "write \"127.0.0.1:{}\", or set admin_token_file: whoever reaches it controls the host",
            address.port()
        );
        problems.at(
            field.span(),
            format!("admin_listen {address} is not a loopback address, and there is no admin_token_file"),
            cure,
        );
    }
}

/// What the values of `[server]`, each fine in itself, must be to each other.
fn server_fits_together(written: &written::Server, server: &Server, problems: &mut Problems<'_>) {
    if let Some(field) = written.connect_timeout_ms.as_ref().or(written.request_timeout_ms.as_ref())
        && server.connect_timeout_ms > server.request_timeout_ms
    {
        let what = format!(
            "connect_timeout_ms ({}) is above request_timeout_ms ({})",
            server.connect_timeout_ms, server.request_timeout_ms
        );
        problems.at(field.span(), what, "connecting is part of a request: lower the one or raise the other");
    }
    let Server { listen, admin_listen, .. } = server;
    let (ip, admin_ip) = (listen.ip().to_canonical(), admin_listen.ip().to_canonical());
    let one_port = listen.port() == admin_listen.port() && listen.port() != 0;
    if let Some(field) = written.admin_listen.as_ref().or(written.listen.as_ref())
        && one_port
        && (ip == admin_ip || ip.is_unspecified())
    {
        problems.at(
            field.span(),
            format!("admin_listen {admin_listen} is taken by listen {listen}"),
            "give the two listeners different ports",
        );
    }
}

fn policy(path: &Path, written: &written::Policy, problems: &mut Problems<'_>) -> Policy {
    let found_before = problems.count();
    let policy = Policy {
        folder: folder(path, &written.folder, problems),
        default: default_policy(&written.default, problems),
        cache: cache(path, &written.cache_dir, problems),
        cpu_budget_ms: number(
            "cpu_budget_ms",
            &written.cpu_budget_ms,
            limits::POLICY_CPU_BUDGET_MS,
            problems,
        ),
        wall_bound_ms: number(
            "wall_bound_ms",
            &written.wall_bound_ms,
            limits::POLICY_WALL_BOUND_MS,
            problems,
        ),
        memory_mb: number("memory_mb", &written.memory_mb, limits::POLICY_MEMORY_MB, problems),
        labels: labels(&written.labels, problems),
    };
    if let Some(field) = written.wall_bound_ms.as_ref().or(written.cpu_budget_ms.as_ref())
        && problems.count() == found_before
        && policy.wall_bound_ms < policy.cpu_budget_ms
    {
        let what = format!(
            "wall_bound_ms ({}) is below cpu_budget_ms ({})",
            policy.wall_bound_ms, policy.cpu_budget_ms
        );
        problems.at(
            field.span(),
            what,
            "a call cannot use more CPU than time: raise the one or lower the other",
        );
    }
    policy
}

/// The policy folder, from the configuration file's own folder.
fn folder(path: &Path, written: &Field<String>, problems: &mut Problems<'_>) -> PathBuf {
    let default = || beside(path, limits::POLICY_FOLDER);
    file("folder", limits::POLICY_FOLDER, path, written, problems).unwrap_or_else(default)
}

/// Where compiled policies are kept.
fn cache(path: &Path, written: &Field<String>, problems: &mut Problems<'_>) -> PolicyCache {
    if written.as_ref().is_some_and(|field| field.get_ref() == limits::POLICY_CACHE_OFF) {
        return PolicyCache::Off;
    }
    file("cache_dir", limits::POLICY_CACHE_DIR, path, written, problems)
        .map_or(PolicyCache::Usual, PolicyCache::In)
}

/// A path, from the configuration file's own folder; `example` shows one.
pub(super) fn file(
    key: &str,
    example: &str,
    path: &Path,
    written: &Field<String>,
    problems: &mut Problems<'_>,
) -> Option<PathBuf> {
    let field = written.as_ref()?;
    let text = field.get_ref();
    if text.is_empty() || text.chars().any(char::is_control) {
        problems.at(field.span(), format!("{key} is not a path"), format!("write {key} = {example:?}"));
    }
    Some(beside(path, text))
}

fn beside(path: &Path, written: &str) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(written)
}

/// A number within its bounds that has no default.
pub(super) fn optional<T>(
    key: &str,
    written: &Field<i128>,
    bounds: Bounds<T>,
    problems: &mut Problems<'_>,
) -> Option<T>
where
    T: Copy + PartialOrd + Display + TryFrom<i128>,
{
    written.as_ref().map(|_| number(key, written, bounds, problems))
}

fn default_policy(written: &Field<String>, problems: &mut Problems<'_>) -> String {
    let Some(field) = written else { return limits::BUILTIN.to_owned() };
    if let Some(stem) = field.get_ref().strip_suffix(".wasm") {
        problems.at(
            field.span(),
            format!("default {:?} is a file, not a policy's name", field.get_ref()),
            format!("write default = {stem:?}"),
        );
    } else {
        name("policy", field, problems);
    }
    field.get_ref().clone()
}

fn labels(written: &[Spanned<String>], problems: &mut Problems<'_>) -> Vec<String> {
    let mut labels = Vec::new();
    let mut seen = Seen::default();
    if let Some(extra) = written.get(limits::MAX_LABELS) {
        problems.at(
            extra.span(),
            format!("labels lists {} headers, more than {}", written.len(), limits::MAX_LABELS),
            "keep those that a policy reads: each costs every decision",
        );
    }
    for field in written {
        let label = field.get_ref().to_ascii_lowercase();
        if !is_header_name(&label) {
            let what = format!("{:?} is no header name", field.get_ref());
            problems.at(field.span(), what, "write letters, digits and -, such as \"x-team\"");
        } else if SECRET_HEADERS.contains(&label.as_str()) {
            let what = format!("the header {label:?} holds a secret, which policies are not given");
            problems.at(field.span(), what, "take it out");
        } else if let Some(first) = seen.line_of_first(&label, field, problems) {
            let what = format!("the header {label:?} is listed twice (first on line {first})");
            problems.at(field.span(), what, "take one of them out");
        }
        labels.push(label);
    }
    labels
}

pub(super) fn is_header_name(text: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=limits::MAX_NAME_CHARS).contains(&text.len()) && text.bytes().all(is_token)
}

fn sessions(path: &Path, written: &written::Sessions, problems: &mut Problems<'_>) -> Sessions {
    let snapshot_file = file("snapshot_file", limits::SNAPSHOT_FILE, path, &written.snapshot_file, problems);
    if let Some(field) = &written.snapshot_interval_ms
        && written.snapshot_file.is_none()
    {
        let what = "snapshot_interval_ms does nothing: there is no snapshot_file";
        problems.at(field.span(), what, "set snapshot_file, or take it out");
    }
    let interval_ms = &written.snapshot_interval_ms;
    Sessions {
        ttl_ms: number("ttl_ms", &written.ttl_ms, limits::SESSION_TTL_MS, problems),
        max_sessions: number("max_sessions", &written.max_sessions, limits::MAX_SESSIONS, problems),
        max_bytes: number("max_bytes", &written.max_bytes, limits::SESSION_BYTES, problems),
        snapshot_file,
        snapshot_interval_ms: number(
            "snapshot_interval_ms",
            interval_ms,
            limits::SNAPSHOT_INTERVAL_MS,
            problems,
        ),
    }
}

/// An address to listen on.
fn address(
    key: &str,
    written: &Field<String>,
    default: SocketAddr,
    problems: &mut Problems<'_>,
) -> SocketAddr {
    let Some(field) = written else { return default };
    field.get_ref().parse().unwrap_or_else(|_| {
        problems.at(
            field.span(),
            format!("{key} {:?} is not an IP address with a port", field.get_ref()),
            format!("write it like \"{default}\""),
        );
        default
    })
}

/// A number within its bounds, or its default.
pub(super) fn number<T>(key: &str, written: &Field<i128>, bounds: Bounds<T>, problems: &mut Problems<'_>) -> T
where
    T: Copy + PartialOrd + Display + TryFrom<i128>,
{
    let Some(field) = written else { return bounds.default };
    let Bounds { default, min, max, unit } = bounds;
    match T::try_from(*field.get_ref()) {
        Ok(number) if (min..=max).contains(&number) => number,
        _ => {
            let too_small = T::try_from(*field.get_ref()).map_or(*field.get_ref() < 0, |number| number < min);
            let side = if too_small { "too small" } else { "too large" };
            let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
            let cure = format!("write a number from {min} to {max}{unit}");
            problems.at(field.span(), format!("{key} is {side}"), cure);
            default
        }
    }
}

/// Whether a text will do as a name: it stands in metrics, tables, file names and command lines.
/// `whose` names the thing in messages.
pub(super) fn name(whose: &str, field: &Spanned<String>, problems: &mut Problems<'_>) {
    let text = field.get_ref();
    let is_fine = text.len() <= limits::MAX_NAME_CHARS
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !is_fine {
        problems.at(
            field.span(),
            format!("{text:?} is no name for a {whose}"),
            format!(
                "write up to {} letters, digits, - _ and . in ASCII, a letter or digit first",
                limits::MAX_NAME_CHARS
            ),
        );
    }
}

/// Finds what stands twice.
#[derive(Default)]
pub(super) struct Seen(HashMap<String, usize>);

impl Seen {
    /// The line at which this text was seen before; if it was not, it is remembered.
    pub(super) fn line_of_first<T>(
        &mut self,
        text: &str,
        field: &Spanned<T>,
        problems: &Problems<'_>,
    ) -> Option<usize> {
        let first = self.0.get(text).copied();
        if first.is_none() {
            self.0.insert(text.to_owned(), problems.source.line(field.span().start));
        }
        first
    }
}
