//! Defaults and bounds of every number, each with its unit and its reason, and the limits of the file itself.

use std::net::{Ipv4Addr, SocketAddr};

/// What a number is when it is not written, and what it may be when it is.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<T> {
    /// The value when the key is left out.
    pub default: T,
    /// Smallest value allowed.
    pub min: T,
    /// Largest value allowed.
    pub max: T,
    /// What is counted, for messages; empty when nothing is.
    pub unit: &'static str,
}

/// Declares [`Bounds`] whose default lies between its ends, or does not compile.
macro_rules! bounds {
    ($($(#[$doc:meta])* $name:ident: $number:ty = $default:expr, from $min:expr, to $max:expr, $unit:expr;)*) => {
        $($(#[$doc])* pub const $name: Bounds<$number> = {
            assert!($min <= $default && $default <= $max);
            Bounds { default: $default, min: $min, max: $max, unit: $unit }
        };)*
    };
}

const MIB: usize = 1 << 20;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// The name in `policy.default` that means the host's own default policy.
pub const BUILTIN: &str = "builtin";

/// How much earlier than its engine the host takes KV blocks for gone: the engine's clock started before its
/// answer arrived here, and a read must be under way before it ends. Milliseconds; covers a slow network and
/// a garbage-collected engine.
pub const HOLD_MARGIN_MS: u64 = 1_000;

/// So long before the end of a turn's hold vLLM's prefill engines do not fetch it any more, and fail their request, or with
/// `kv_load_failure_policy` "recompute" never answer it (0.32.0). Milliseconds.
pub const DECLINED_BEFORE_END_MS: u64 = 5_000;

/// A thousand times a usual file; keeps a path given by mistake from filling memory.
pub const MAX_CONFIG_BYTES: u64 = MIB as u64;

/// Problems shown of one file; more than a screenful helps nobody.
pub const MAX_PROBLEMS_SHOWN: usize = 20;

/// Characters shown of a line in a message, so that it fits a terminal.
pub const MAX_SHOWN_CHARS: usize = 120;

/// Characters of a sentence in a message; ours alone stay below it.
pub const MAX_MESSAGE_CHARS: usize = 400;

/// Characters of a pool's, worker's or policy's name: they stand in metrics and tables.
pub const MAX_NAME_CHARS: usize = 64;

/// Bytes of a model's name: they stand in metrics and in each answer. Longer than any repository path in use.
pub const MAX_MODEL_BYTES: usize = 256;

/// Header names given to policies: each costs every decision a copy of its value.
pub const MAX_LABELS: usize = 16;

/// Pools of one host: one model each, and each has its own table, metrics and health checks.
pub const MAX_POOLS: usize = 256;

/// Workers of one pool: policies see them all at every decision, and are measured up to 1,024.
pub const MAX_WORKERS: usize = 4_096;

/// Tenants of one host: a place that becomes free looks at each that waits, and each has metrics of its own.
pub const MAX_TENANTS: usize = 1_024;

/// API keys of all tenants together: a caller's key is compared with every one of them, 32 bytes each.
pub const MAX_TENANT_KEYS: usize = 4_096;

/// Loopback only, until the operator says who may reach it.
pub const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8_000);

/// What traces call this host when no name is written.
pub const SERVICE_NAME: &str = "sluice";

/// Next to [`LISTEN`].
pub const ADMIN_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8_001);

/// Policies are dropped next to the configuration file.
pub const POLICY_FOLDER: &str = "policies.d";

/// What `policy.cache_dir` says where compiled policies are not kept. A folder of that name is `./off`.
pub const POLICY_CACHE_OFF: &str = "off";

/// As an example.
pub const POLICY_CACHE_DIR: &str = "/var/cache/sluice/components";

/// As an example.
pub const SNAPSHOT_FILE: &str = "/var/lib/sluice/sessions.snapshot";

/// Where engines attach: the folder is this user's own, as systemd's RuntimeDirectory= makes it.
pub const TRANSFER_SOCKET: &str = "/run/sluice/kv.sock";

/// Bytes of a unix socket's path: more do not fit into its address.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Users beside this process's own whose engines may attach: one each for as many engines as a host takes.
pub const MAX_OTHER_UIDS: usize = sluice_transfer::link::MAX_ENGINES;

bounds! {
    /// Two fill most hosts' memory links; at most what the copying fabric takes.
    COPY_THREADS: usize = 2, from 1, to 64, "threads";

    /// Long enough for most answers, and what orchestrators wait before they kill. 0: cut off at once.
    DRAIN_TIMEOUT_MS: u64 = 30_000, from 0, to HOUR_MS, "ms";
    /// A million tokens of text is about 4 MiB; room for images in the body. At least what a request needs.
    MAX_BODY_BYTES: usize = 16 * MIB, from 1_024, to 1_024 * MIB, "bytes";
    /// Headers come in one or two packets; more time only helps whoever holds connections open.
    HEADER_TIMEOUT_MS: u64 = 10_000, from 100, to 10 * MINUTE_MS, "ms";
    /// What OpenAI's own clients wait.
    REQUEST_TIMEOUT_MS: u64 = 10 * MINUTE_MS, from 1_000, to DAY_MS, "ms";
    /// Workers are near: one lost packet (1 s to its repeat) is waited for, a dead host is not.
    CONNECT_TIMEOUT_MS: u64 = 2_000, from 10, to MINUTE_MS, "ms";
    /// Longer than any step of an engine that works, preemption and recomputing included.
    STREAM_SILENCE_MS: u64 = MINUTE_MS, from 100, to HOUR_MS, "ms";
    /// Sixteen workers with 256 running sequences each; beyond, requests would only queue at engines, where none is
    /// fair to tenants.
    MAX_IN_FLIGHT: usize = 4_096, from 1, to 1_000_000, "requests";
    /// A quarter of what runs: the last to come waits about a quarter of an answer's time, which a burst is worth.
    /// 0: nobody waits.
    MAX_QUEUED: usize = 1_024, from 0, to 1_000_000, "requests";
    /// What a person waits for a first word. Who waits longer has most likely given up.
    QUEUE_TIMEOUT_MS: u64 = 10_000, from 1, to HOUR_MS, "ms";

    /// All alike until told otherwise.
    TENANT_WEIGHT: u32 = 1, from 1, to sluice_core::admission::WEIGHT_AT_MOST, "shares";

    /// A thousand times a usual decision; at most what a client would notice.
    POLICY_CPU_BUDGET_MS: u32 = 5, from 1, to 1_000, "ms";
    /// A host with a twentieth of a CPU still spends the CPU budget in it.
    POLICY_WALL_BOUND_MS: u32 = 100, from 1, to 10_000, "ms";
    /// Ample for policies in Rust; those in languages with a runtime of their own need more.
    POLICY_MEMORY_MB: u32 = 16, from 1, to 1_024, "MiB";

    /// A person's pause; past it the engines have given the blocks to others anyway.
    SESSION_TTL_MS: u64 = 30 * MINUTE_MS, from 1_000, to 7 * DAY_MS, "ms";
    /// Conversations that go on within half an hour, of some hundreds of requests a second: far above what engines keep
    /// blocks of.
    MAX_SESSIONS: usize = 100_000, from 1, to 10_000_000, "sessions";
    /// Ample for the default of `max_sessions` at the 300 to 900 bytes that a session takes: this bound is for long names and many
    /// derived conversations, and for who raises the other.
    SESSION_BYTES: usize = 128 * MIB, from MIB, to 64 * 1_024 * MIB, "bytes";
    /// What a host that is killed forgets. Writing 100,000 sessions takes a fraction of a second of one CPU.
    SNAPSHOT_INTERVAL_MS: u64 = 30_000, from 100, to DAY_MS, "ms";

    /// vLLM's default on GPUs.
    BLOCK_TOKENS: u32 = 16, from 1, to 65_536, "tokens";
    /// Llama 3.1 8B in 16 bits: 2 (K and V) x 32 layers x 8 KV heads x 128 x 2 bytes. A wrong figure makes
    /// transfers look cheaper or dearer to policies; answers stay right.
    KV_BYTES_PER_TOKEN: u32 = 131_072, from 1, to 1 << 30, "bytes";
    /// vLLM's default of `kv_lease_duration`. At least twice the margin, so that half of it can be used.
    KV_LEASE_MS: u64 = 30_000, from 2 * HOLD_MARGIN_MS, to DAY_MS, "ms";
    /// A million tokens at 10,000 a second and a short queue; a prompt that takes longer needs a larger figure.
    PREFILL_TIMEOUT_MS: u64 = 2 * MINUTE_MS, from 100, to HOUR_MS, "ms";
    /// A transfer and a step take well under a second; the rest is a decode engine's queue.
    DECODE_FIRST_BYTE_MS: u64 = 30_000, from 100, to HOUR_MS, "ms";
    /// vLLM's default of `decoder_kv_blocks_ttl`.
    DECODER_TTL_MS: u64 = 480_000, from 2 * HOLD_MARGIN_MS, to DAY_MS, "ms";
}

/// For balancers to read `/ready` and send no more. 0: for those that are told of the end by other means.
pub const DRAIN_DELAY_MS: Bounds<u64> = Bounds { default: 0, min: 0, max: 10 * MINUTE_MS, unit: "ms" };

/// Bounds of a tenant's `max_in_flight`, which has no default: `server.max_in_flight` bounds all of them.
pub const TENANT_IN_FLIGHT: Bounds<usize> = Bounds { default: 1, min: 1, max: 1_000_000, unit: "requests" };

/// Bounds of `tokens_per_minute`, which has no default. Far above what any fleet computes in a minute.
pub const TOKENS_PER_MINUTE: Bounds<u64> = Bounds { default: 1, min: 1, max: 1 << 50, unit: "tokens" };

/// Bounds of `priority_min` and `priority_max`, which have no default. Engines take any.
pub const PRIORITY: Bounds<i32> = Bounds { default: 0, min: -1_000_000, max: 1_000_000, unit: "" };

/// Any number will do for a zone; all workers are in one until told otherwise.
pub const ZONE: Bounds<u16> = Bounds { default: 0, min: 0, max: u16::MAX, unit: "" };

/// Bounds of each of `other_uids`.
pub const UID: Bounds<u32> = Bounds { default: 0, min: 0, max: u32::MAX - 1, unit: "" };

/// Bounds of `max_model_len`, which has no default: the engines know their own.
pub const MAX_MODEL_LEN: Bounds<u32> = Bounds { default: 1, min: 1, max: 1 << 27, unit: "tokens" };
