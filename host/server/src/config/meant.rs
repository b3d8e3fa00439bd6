//! The configuration as meant: every value is checked, every default filled in.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use sluice_core::facts::Role;
use sluice_policy::Limits;

use super::url::WorkerUrl;
use crate::tenants::KeyDigest;

/// All that the host process is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Listeners, timeouts and sizes.
    pub server: Server,
    /// How connections to workers are secured.
    pub upstream: UpstreamTls,
    /// Who decides, and within which limits.
    pub policy: Policy,
    /// What is remembered between the turns of a conversation.
    pub sessions: Sessions,
    /// What the host tells of its requests.
    pub telemetry: Telemetry,
    /// How this host moves KV, for host-managed pools.
    pub transfer: Transfer,
    /// Who the callers are, and what each may have.
    pub tenants: Tenants,
    /// At least one; names and models are unique among them.
    pub pools: Vec<Pool>,
    /// The file this came from.
    pub path: PathBuf,
}

/// `[server]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where operators connect: a loopback address, or there is a token.
    pub admin_listen: SocketAddr,
    /// Holds the token that operators show; `None`: whoever reaches the address is one.
    pub admin_token_file: Option<PathBuf>,
    /// From the signal to stop until new connections are refused; meanwhile `/ready` says no.
    pub drain_delay_ms: u64,
    /// From the signal to stop until requests still running are cut off; 0 cuts them off at once.
    pub drain_timeout_ms: u64,
    /// Longest request body accepted.
    pub max_body_bytes: usize,
    /// From a client's connection to the end of its request's headers.
    pub header_timeout_ms: u64,
    /// From the end of a request's headers to the last byte of its answer.
    pub request_timeout_ms: u64,
    /// From the start of a connection to a worker until it stands; at most `request_timeout_ms`.
    pub connect_timeout_ms: u64,
    /// Longest silence of an engine between two events of a stream.
    pub stream_silence_ms: u64,
    /// Requests served at the same time; more wait.
    pub max_in_flight: usize,
    /// Requests that wait for a place; more are shed.
    pub max_queued: usize,
    /// How long a request may wait for a place; `request_timeout_ms` ends it as well.
    pub queue_timeout_ms: u64,
    /// The certificate that clients see; `None` serves plain HTTP.
    pub tls: Option<Tls>,
}

/// A certificate and its key, each a PEM file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The certificate, and those between it and its authority.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
}

/// `[upstream]`: for workers whose url is https.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Authorities that sign workers' certificates, in PEM. There is one if any worker's url is https.
    pub ca_file: Option<PathBuf>,
    /// The certificate that this host shows to workers that ask for one.
    pub client: Option<Tls>,
}

/// `[policy]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Where policy files are dropped; a relative path starts from the configuration file's folder.
    pub folder: PathBuf,
    /// The policy that decides: the stem of a file in `folder`, or [`super::BUILTIN`].
    pub default: String,
    /// Where compiled policies are kept for the next start.
    pub cache: PolicyCache,
    /// CPU time of one call.
    pub cpu_budget_ms: u32,
    /// Wall time of one call, behind the CPU budget and never below it.
    pub wall_bound_ms: u32,
    /// Memory of one policy instance, in MiB.
    pub memory_mb: u32,
    /// Names of the request headers that policies may see, in lower case, each once.
    pub labels: Vec<String>,
}

/// `policy.cache_dir`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyCache {
    /// Where the environment says that caches are.
    Usual,
    /// Nowhere: policies are compiled at each start.
    Off,
    /// In this folder; a relative path starts from the configuration file's folder.
    In(PathBuf),
}

impl Transfer {
    /// Why the socket cannot be made: its folder is not there, nor the one to make it in. Looked for now.
    pub fn no_folder(&self) -> Option<String> {
        let real = |folder: &&Path| !folder.as_os_str().is_empty();
        let folder = self.socket.parent().filter(real)?;
        let above = folder.parent().filter(real).unwrap_or(folder);
        let told = || {
            format!(
                "engines cannot attach at {}: {} is no folder, and a host makes no more than the last folder of the path",
                self.socket.display(),
                above.display()
            )
        };
        (!folder.is_dir() && !above.is_dir()).then(told)
    }
}

impl Config {
    /// Whether this host moves KV between engines.
    pub fn moves_kv(&self) -> bool {
        self.pools.iter().any(|pool| pool.mode == PoolMode::HostManaged)
    }

    /// What the file says to no end, or at a price.
    pub fn notes(&self) -> Vec<String> {
        let unused = self.transfer.line.filter(|_| !self.moves_kv());
        let told = |line| {
            format!(
                "{}:{line}: [transfer] does nothing: no pool has mode = {:?}",
                self.path.display(),
                PoolMode::HostManaged.name()
            )
        };
        let made = self.pools.iter().filter(|pool| pool.streams == StreamsBy::Host);
        let priced = made.map(|pool| {
            format!(
                "pool {:?} has streams = {:?}: of conversations, a stream's first token comes with its last",
                pool.name,
                pool.streams.name()
            )
        });
        let keeping =
            self.pools.iter().filter(|pool| pool.mode.keeps_turns() && self.policy.default == super::BUILTIN);
        let forgetful = keeping.map(|pool| {
            format!(
                "pool {:?} has mode = {:?}, and [policy] default = {:?} keeps no turn: name a policy that does, such as \
                 adaptive",
                pool.name,
                pool.mode.name(),
                super::BUILTIN,
            )
        });
        unused.map(told).into_iter().chain(priced).chain(forgetful).collect()
    }
}

impl Policy {
    /// What a policy may use, as the policy host is told.
    pub fn limits(&self) -> Limits {
        Limits {
            cpu_budget_ms: self.cpu_budget_ms,
            wall_bound_ms: self.wall_bound_ms,
            memory_bytes: self.memory_mb as usize * 1024 * 1024,
            ..Limits::default()
        }
    }
}

/// `[sessions]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sessions {
    /// From the end of a conversation's last turn until it is forgotten.
    pub ttl_ms: u64,
    /// Conversations remembered at the same time; the longest idle one makes room.
    pub max_sessions: usize,
    /// Memory that they may count for together, in bytes; the longest idle one makes room.
    pub max_bytes: usize,
    /// Where they outlive the process; `None`: they do not.
    pub snapshot_file: Option<PathBuf>,
    /// Between two snapshots.
    pub snapshot_interval_ms: u64,
}

/// `[telemetry]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// Whether each request is logged at info; else it is at debug.
    pub access_log: bool,
    /// The collector that spans are sent to, OTLP over HTTP; `None` makes no spans.
    pub otlp_endpoint: Option<WorkerUrl>,
    /// What traces call this host.
    pub service_name: String,
    /// The share of requests that is traced, where the client does not say.
    pub sample_ratio: SampleRatio,
}

/// A share of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleRatio {
    /// Of a million requests.
    pub per_million: u32,
}

impl SampleRatio {
    /// Each request.
    pub const ALL: Self = Self { per_million: 1_000_000 };
}

/// `[transfer]`: where engines of host-managed pools give this host their KV memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// The unix socket that engines attach by.
    pub socket: PathBuf,
    /// Threads that copy KV.
    pub copy_threads: usize,
    /// Users whose engines may attach beside this process's own.
    pub other_uids: Vec<u32>,
    /// The line of its header in the file, counted from 1, if it stands there.
    pub line: Option<usize>,
}

/// `[tenants]`, and each `[[tenant]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenants {
    /// The trusted request header that names a caller's tenant, in lower case; `None`: keys do.
    pub header: Option<String>,
    /// The tenant of callers that say nothing of themselves; `None`: they are refused.
    pub anonymous: Option<String>,
    /// Whether engines get a salt for each tenant, so that no tenant finds another's cached prefixes.
    pub cache_salt: bool,
    /// What makes salts unpredictable to who knows a tenant's name.
    pub salt_secret_file: Option<PathBuf>,
    /// Unique in name; none, without a header: every API key is a tenant of its own, unchecked.
    pub tenants: Vec<Tenant>,
}

/// `[[tenant]]`: one that may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Unique among tenants.
    pub name: String,
    /// Of its API keys; none of them is another tenant's.
    pub keys: Vec<KeyDigest>,
    /// Its part of the places when all are taken, against the others' weights.
    pub weight: u32,
    /// Requests at a time, waiting ones included.
    pub max_in_flight: Option<usize>,
    /// Prompt and output tokens together.
    pub tokens_per_minute: Option<u64>,
    /// Bounds of its requests' `priority`, as engines read it: lower is earlier.
    pub priority_min: Option<i32>,
    /// Never below `priority_min`.
    pub priority_max: Option<i32>,
}

/// How the workers of a pool share the work of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolMode {
    /// Each worker prefills and decodes.
    Unified,
    /// Prefill workers fill the KV cache and decode workers fetch it from them.
    Pull,
    /// As pull; and decode workers keep a turn's KV for the next one, whose prefill worker fetches it from them.
    Bidirectional,
    /// Prefill workers fill the KV cache and this host moves it to decode workers, by pull or push.
    HostManaged,
}

impl PoolMode {
    /// Every mode, in the order in which messages list them.
    pub const ALL: [Self; 4] = [Self::Unified, Self::Pull, Self::Bidirectional, Self::HostManaged];

    /// Whether requests are split over prefill and decode workers.
    pub fn splits(self) -> bool {
        match self {
            Self::Unified => false,
            Self::Pull | Self::Bidirectional | Self::HostManaged => true,
        }
    }

    /// Whether engines move KV by connectors of their own.
    pub fn engines_move_kv(self) -> bool {
        matches!(self, Self::Pull | Self::Bidirectional)
    }

    /// Whether decode workers may keep a turn's KV for the next one.
    pub fn keeps_turns(self) -> bool {
        matches!(self, Self::Bidirectional | Self::HostManaged)
    }

    /// The name used in configuration, metrics and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unified => "unified",
            Self::Pull => "pull",
            Self::Bidirectional => "bidirectional",
            Self::HostManaged => "host-managed",
        }
    }
}

/// Who makes a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamsBy {
    /// The engine.
    Engine,
    /// This host, of the engine's whole answer.
    Host,
}

impl StreamsBy {
    /// All of them, in the order in which messages list them.
    pub const ALL: [Self; 2] = [Self::Engine, Self::Host];

    /// The name used in configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Host => "made",
        }
    }
}

/// `[[pool]]`: the workers that serve one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Unique among pools.
    pub name: String,
    /// The model's name as clients write it, and as the engines were told to serve it.
    pub model: String,
    /// How a request is split over the workers.
    pub mode: PoolMode,
    /// Tokens a KV block, as the engines have it.
    pub block_tokens: u32,
    /// KV bytes a token, over all layers.
    pub kv_bytes_per_token: u32,
    /// Whether the file says that figure; else attached engines do.
    pub kv_bytes_per_token_is_set: bool,
    /// How long a prefill worker keeps finished KV blocks for a decode worker, as the engines were started.
    pub kv_lease_ms: u64,
    /// How long a decode worker keeps a turn's KV blocks for the next turn, as the engines were started.
    pub decoder_ttl_ms: u64,
    /// Longest time from a prefill leg's dispatch to its answer, and from a unified leg's to its first byte.
    pub prefill_timeout_ms: u64,
    /// Longest time from a decode leg's dispatch to the first event of its stream; whole answers get more, by their
    /// token limit.
    pub decode_first_byte_ms: u64,
    /// Longest context in tokens, prompt and answer together; `None` leaves it to the engines.
    pub max_model_len: Option<u32>,
    /// Who makes the streams of requests whose turn may be kept.
    pub streams: StreamsBy,
    /// Whether a pull pool is probed for whether KV really moves, with small requests of the host's own.
    pub probe_kv: bool,
    /// Holds the API key that the pool's engines ask for.
    pub engine_api_key_file: Option<PathBuf>,
    /// At least one; names and addresses are unique among them.
    pub workers: Vec<Worker>,
}

/// `[[pool.worker]]`: one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Unique in its pool.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Where it answers.
    pub url: WorkerUrl,
    /// Whether a decode worker may also be asked to prefill.
    pub can_prefill: bool,
    /// Where it runs: workers of one zone are near each other.
    pub zone: u16,
    /// The name by which it attaches to this host's KV link; `None` in pools where the host moves no KV.
    pub engine: Option<String>,
    /// See [`worker_id`].
    pub id: u64,
    /// Line of its table in the file, counted from 1.
    pub line: usize,
}

/// A worker's id: it depends on the names of the pool and the worker alone, so it stays the same when the
/// host restarts, when workers are added or reordered, and when the worker moves to another address.
/// FNV-1a, 64 bits; the byte 0xff, which UTF-8 never holds, keeps ("ab", "c") and ("a", "bc") apart.
pub fn worker_id(pool: &str, worker: &str) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let bytes = pool.bytes().chain([0xff]).chain(worker.bytes());
    bytes.fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}
