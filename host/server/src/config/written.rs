//! The configuration as written: known keys with values of the right types, each with its place.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeTable;

use super::errors::Problems;
use super::table::{Field, Shape, Table};

const ROOT: Shape = Shape {
    header: "this file",
    keys: &["server", "upstream", "policy", "sessions", "telemetry", "transfer", "tenants", "tenant", "pool"],
};
const SERVER: Shape = Shape {
    header: "[server]",
    keys: &[
        "listen",
        "admin_listen",
        "admin_token_file",
        "drain_delay_ms",
        "drain_timeout_ms",
        "max_body_bytes",
        "header_timeout_ms",
        "request_timeout_ms",
        "connect_timeout_ms",
        "stream_silence_ms",
        "max_in_flight",
        "max_queued",
        "queue_timeout_ms",
        "tls_cert_file",
        "tls_key_file",
    ],
};
const UPSTREAM: Shape =
    Shape { header: "[upstream]", keys: &["ca_file", "client_cert_file", "client_key_file"] };
const POLICY: Shape = Shape {
    header: "[policy]",
    keys: &["folder", "default", "cache_dir", "cpu_budget_ms", "wall_bound_ms", "memory_mb", "labels"],
};
const SESSIONS: Shape = Shape {
    header: "[sessions]",
    keys: &["ttl_ms", "max_sessions", "max_bytes", "snapshot_file", "snapshot_interval_ms"],
};
const TELEMETRY: Shape =
    Shape { header: "[telemetry]", keys: &["access_log", "otlp_endpoint", "service_name", "sample_ratio"] };
const TRANSFER: Shape = Shape { header: "[transfer]", keys: &["socket", "copy_threads", "other_uids"] };
const TENANTS: Shape =
    Shape { header: "[tenants]", keys: &["header", "anonymous", "cache_salt", "salt_secret_file"] };
const TENANT: Shape = Shape {
    header: "[[tenant]]",
    keys: &["name", "keys", "weight", "max_in_flight", "tokens_per_minute", "priority_min", "priority_max"],
};
const POOL: Shape = Shape {
    header: "[[pool]]",
    keys: &[
        "name",
        "model",
        "mode",
        "block_tokens",
        "kv_bytes_per_token",
        "kv_lease_ms",
        "decoder_ttl_ms",
        "prefill_timeout_ms",
        "decode_first_byte_ms",
        "max_model_len",
        "probe_kv",
        "streams",
        "engine_api_key_file",
        "worker",
    ],
};
const WORKER: Shape =
    Shape { header: "[[pool.worker]]", keys: &["name", "role", "url", "can_prefill", "zone", "engine"] };

/// Every kind of table.
pub(super) const SHAPES: [&Shape; 11] =
    [&ROOT, &SERVER, &UPSTREAM, &POLICY, &SESSIONS, &TELEMETRY, &TRANSFER, &TENANTS, &TENANT, &POOL, &WORKER];

/// The whole file.
pub(super) struct Written {
    pub(super) server: Server,
    pub(super) upstream: Upstream,
    pub(super) policy: Policy,
    pub(super) sessions: Sessions,
    pub(super) telemetry: Telemetry,
    pub(super) transfer: Transfer,
    pub(super) tenants: Tenants,
    pub(super) pools: Vec<Pool>,
}

/// `[server]`
pub(super) struct Server {
    pub(super) listen: Field<String>,
    pub(super) admin_listen: Field<String>,
    pub(super) admin_token_file: Field<String>,
    pub(super) drain_delay_ms: Field<i128>,
    pub(super) drain_timeout_ms: Field<i128>,
    pub(super) max_body_bytes: Field<i128>,
    pub(super) header_timeout_ms: Field<i128>,
    pub(super) request_timeout_ms: Field<i128>,
    pub(super) connect_timeout_ms: Field<i128>,
    pub(super) stream_silence_ms: Field<i128>,
    pub(super) max_in_flight: Field<i128>,
    pub(super) max_queued: Field<i128>,
    pub(super) queue_timeout_ms: Field<i128>,
    pub(super) tls_cert_file: Field<String>,
    pub(super) tls_key_file: Field<String>,
}

/// `[upstream]`
pub(super) struct Upstream {
    pub(super) ca_file: Field<String>,
    pub(super) client_cert_file: Field<String>,
    pub(super) client_key_file: Field<String>,
}

/// `[policy]`
pub(super) struct Policy {
    pub(super) folder: Field<String>,
    pub(super) default: Field<String>,
    pub(super) cache_dir: Field<String>,
    pub(super) cpu_budget_ms: Field<i128>,
    pub(super) wall_bound_ms: Field<i128>,
    pub(super) memory_mb: Field<i128>,
    pub(super) labels: Vec<Spanned<String>>,
}

/// `[sessions]`
pub(super) struct Sessions {
    pub(super) ttl_ms: Field<i128>,
    pub(super) max_sessions: Field<i128>,
    pub(super) max_bytes: Field<i128>,
    pub(super) snapshot_file: Field<String>,
    pub(super) snapshot_interval_ms: Field<i128>,
}

/// `[telemetry]`
pub(super) struct Telemetry {
    pub(super) access_log: Field<bool>,
    pub(super) otlp_endpoint: Field<String>,
    pub(super) service_name: Field<String>,
    pub(super) sample_ratio: Field<f64>,
}

/// `[transfer]`
pub(super) struct Transfer {
    /// Of its header, if it stands in the file.
    pub(super) span: Option<Range<usize>>,
    pub(super) socket: Field<String>,
    pub(super) copy_threads: Field<i128>,
    pub(super) other_uids: Vec<Spanned<i128>>,
}

/// `[tenants]`, and each `[[tenant]]`
pub(super) struct Tenants {
    pub(super) header: Field<String>,
    pub(super) anonymous: Field<String>,
    pub(super) cache_salt: Field<bool>,
    pub(super) salt_secret_file: Field<String>,
    pub(super) tenants: Vec<Tenant>,
}

/// `[[tenant]]`
pub(super) struct Tenant {
    pub(super) span: Range<usize>,
    pub(super) name: Field<String>,
    pub(super) keys: Vec<Spanned<String>>,
    pub(super) weight: Field<i128>,
    pub(super) max_in_flight: Field<i128>,
    pub(super) tokens_per_minute: Field<i128>,
    pub(super) priority_min: Field<i128>,
    pub(super) priority_max: Field<i128>,
}

/// `[[pool]]`
pub(super) struct Pool {
    pub(super) span: Range<usize>,
    pub(super) name: Field<String>,
    pub(super) model: Field<String>,
    pub(super) mode: Field<String>,
    pub(super) block_tokens: Field<i128>,
    pub(super) kv_bytes_per_token: Field<i128>,
    pub(super) kv_lease_ms: Field<i128>,
    pub(super) decoder_ttl_ms: Field<i128>,
    pub(super) prefill_timeout_ms: Field<i128>,
    pub(super) decode_first_byte_ms: Field<i128>,
    pub(super) max_model_len: Field<i128>,
    pub(super) probe_kv: Field<bool>,
    pub(super) streams: Field<String>,
    pub(super) engine_api_key_file: Field<String>,
    pub(super) workers: Vec<Worker>,
}

/// `[[pool.worker]]`
pub(super) struct Worker {
    pub(super) span: Range<usize>,
    pub(super) name: Field<String>,
    pub(super) role: Field<String>,
    pub(super) url: Field<String>,
    pub(super) can_prefill: Field<bool>,
    pub(super) zone: Field<i128>,
    pub(super) engine: Field<String>,
}

/// Reads the whole file.
pub(super) fn read(root: Spanned<DeTable<'_>>, problems: &mut Problems<'_>) -> Written {
    let mut root = Table::new(&ROOT, root);
    let server = server(root.table("server", &SERVER, problems), problems);
    let upstream = upstream(root.table("upstream", &UPSTREAM, problems), problems);
    let policy = policy(root.table("policy", &POLICY, problems), problems);
    let sessions = sessions(root.table("sessions", &SESSIONS, problems), problems);
    let telemetry = telemetry(root.table("telemetry", &TELEMETRY, problems), problems);
    let is_written = root.has("transfer");
    let transfer = transfer(root.table("transfer", &TRANSFER, problems), is_written, problems);
    let tenants = tenants(&mut root, problems);
    let pools = root.required_tables("pool", &POOL, problems, |problems| {
        problems.of_file("no pool is configured", "add a [[pool]] with its [[pool.worker]] tables");
    });
    let pools = pools.into_iter().map(|table| pool(table, problems)).collect();
    root.finish(&SHAPES, problems);
    Written { server, upstream, policy, sessions, telemetry, transfer, tenants, pools }
}

fn server(mut table: Table<'_>, problems: &mut Problems<'_>) -> Server {
    let server = Server {
        listen: table.text("listen", problems),
        admin_listen: table.text("admin_listen", problems),
        admin_token_file: table.text("admin_token_file", problems),
        drain_delay_ms: table.number("drain_delay_ms", problems),
        drain_timeout_ms: table.number("drain_timeout_ms", problems),
        max_body_bytes: table.number("max_body_bytes", problems),
        header_timeout_ms: table.number("header_timeout_ms", problems),
        request_timeout_ms: table.number("request_timeout_ms", problems),
        connect_timeout_ms: table.number("connect_timeout_ms", problems),
        stream_silence_ms: table.number("stream_silence_ms", problems),
        max_in_flight: table.number("max_in_flight", problems),
        max_queued: table.number("max_queued", problems),
        queue_timeout_ms: table.number("queue_timeout_ms", problems),
        tls_cert_file: table.text("tls_cert_file", problems),
        tls_key_file: table.text("tls_key_file", problems),
    };
    table.finish(&SHAPES, problems);
    server
}

fn upstream(mut table: Table<'_>, problems: &mut Problems<'_>) -> Upstream {
    let upstream = Upstream {
        ca_file: table.text("ca_file", problems),
        client_cert_file: table.text("client_cert_file", problems),
        client_key_file: table.text("client_key_file", problems),
    };
    table.finish(&SHAPES, problems);
    upstream
}

fn policy(mut table: Table<'_>, problems: &mut Problems<'_>) -> Policy {
    let policy = Policy {
        folder: table.text("folder", problems),
        default: table.text("default", problems),
        cache_dir: table.text("cache_dir", problems),
        cpu_budget_ms: table.number("cpu_budget_ms", problems),
        wall_bound_ms: table.number("wall_bound_ms", problems),
        memory_mb: table.number("memory_mb", problems),
        labels: table.texts("labels", problems),
    };
    table.finish(&SHAPES, problems);
    policy
}

fn sessions(mut table: Table<'_>, problems: &mut Problems<'_>) -> Sessions {
    let sessions = Sessions {
        ttl_ms: table.number("ttl_ms", problems),
        max_sessions: table.number("max_sessions", problems),
        max_bytes: table.number("max_bytes", problems),
        snapshot_file: table.text("snapshot_file", problems),
        snapshot_interval_ms: table.number("snapshot_interval_ms", problems),
    };
    table.finish(&SHAPES, problems);
    sessions
}

fn telemetry(mut table: Table<'_>, problems: &mut Problems<'_>) -> Telemetry {
    let telemetry = Telemetry {
        access_log: table.boolean("access_log", problems),
        otlp_endpoint: table.text("otlp_endpoint", problems),
        service_name: table.text("service_name", problems),
        sample_ratio: table.fraction("sample_ratio", problems),
    };
    table.finish(&SHAPES, problems);
    telemetry
}

fn transfer(mut table: Table<'_>, is_written: bool, problems: &mut Problems<'_>) -> Transfer {
    let transfer = Transfer {
        span: is_written.then(|| table.span()),
        socket: table.text("socket", problems),
        copy_threads: table.number("copy_threads", problems),
        other_uids: table.numbers("other_uids", problems),
    };
    table.finish(&SHAPES, problems);
    transfer
}

fn tenants(root: &mut Table<'_>, problems: &mut Problems<'_>) -> Tenants {
    let mut table = root.table("tenants", &TENANTS, problems);
    let each = root.tables("tenant", &TENANT, problems);
    let tenants = Tenants {
        header: table.text("header", problems),
        anonymous: table.text("anonymous", problems),
        cache_salt: table.boolean("cache_salt", problems),
        salt_secret_file: table.text("salt_secret_file", problems),
        tenants: each.into_iter().map(|table| tenant(table, problems)).collect(),
    };
    table.finish(&SHAPES, problems);
    tenants
}

fn tenant(mut table: Table<'_>, problems: &mut Problems<'_>) -> Tenant {
    let tenant = Tenant {
        span: table.span(),
        name: table.required_text("name", "search", problems),
        keys: table.texts("keys", problems),
        weight: table.number("weight", problems),
        max_in_flight: table.number("max_in_flight", problems),
        tokens_per_minute: table.number("tokens_per_minute", problems),
        priority_min: table.number("priority_min", problems),
        priority_max: table.number("priority_max", problems),
    };
    table.finish(&SHAPES, problems);
    tenant
}

fn pool(mut table: Table<'_>, problems: &mut Problems<'_>) -> Pool {
    let span = table.span();
    let workers = table.required_tables("worker", &WORKER, problems, |problems| {
        problems.at(span.clone(), "this [[pool]] has no workers", "add a [[pool.worker]] below its keys");
    });
    let pool = Pool {
        name: table.required_text("name", "main", problems),
        model: table.required_text("model", "MODEL", problems),
        mode: table.required_text("mode", "unified", problems),
        block_tokens: table.number("block_tokens", problems),
        kv_bytes_per_token: table.number("kv_bytes_per_token", problems),
        kv_lease_ms: table.number("kv_lease_ms", problems),
        decoder_ttl_ms: table.number("decoder_ttl_ms", problems),
        prefill_timeout_ms: table.number("prefill_timeout_ms", problems),
        decode_first_byte_ms: table.number("decode_first_byte_ms", problems),
        max_model_len: table.number("max_model_len", problems),
        probe_kv: table.boolean("probe_kv", problems),
        streams: table.text("streams", problems),
        engine_api_key_file: table.text("engine_api_key_file", problems),
        workers: workers.into_iter().map(|table| worker(table, problems)).collect(),
        span,
    };
    table.finish(&SHAPES, problems);
    pool
}

fn worker(mut table: Table<'_>, problems: &mut Problems<'_>) -> Worker {
    let worker = Worker {
        span: table.span(),
        name: table.required_text("name", "worker-0", problems),
        role: table.required_text("role", "unified", problems),
        url: table.required_text("url", "http://HOST:PORT", problems),
        can_prefill: table.boolean("can_prefill", problems),
        zone: table.number("zone", problems),
        engine: table.text("engine", problems),
    };
    table.finish(&SHAPES, problems);
    worker
}
