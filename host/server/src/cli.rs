//! The command line. Help texts teach: each says what a command is for and shows it at work.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::admin_address::AdminAddress;

/// The open, programmable router for disaggregated LLM inference.
///
/// Sluice stands in front of vLLM engines and speaks the OpenAI API. Where each request prefills and decodes is
/// decided by a policy: a small WASM file in a folder, replaced by dropping in another, with no restart.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve requests.
    ///
    /// Reads sluice.toml, listens, and routes until SIGTERM or SIGINT; then lets requests in flight end.
    /// Logs go to standard error; SLUICE_LOG=debug says more.
    ///
    ///     sluice serve --config sluice.toml
    #[command(verbatim_doc_comment)]
    Serve(Serve),
    /// Check a configuration without serving.
    ///
    /// Prints every problem with its line and its cure; exits with 2 if there is one. The files and folders that it
    /// names are looked at too: secrets, certificates and their keys, the policy folder. No port is opened.
    CheckConfig(CheckConfig),
    /// Look at every engine of a configuration, and say what is wrong and what to do. No host need run.
    ///
    ///     sluice doctor --config sluice.toml
    ///
    /// Of each worker: whether it can be reached, is well, answers; its version (0.32 is tested), model, KV block size
    /// and connector; whether /tokenize counts as usage does; its clock. Of each pair of a pull pool: whether KV really
    /// moves. For that a small request of its own goes through both engines, and the decode engine's counters must
    /// show that the prompt came from prefill: answers alone are right either way, only slow.
    ///
    /// Each finding says what is seen, why it matters and what to do. Exit codes: 0 nothing is wrong, 1 something is,
    /// 2 the configuration cannot be used. The lease and TTL of the engines cannot be seen from outside.
    #[command(verbatim_doc_comment)]
    Doctor(Doctor),
    /// List the workers of a running host: state, load, measured rates.
    ///
    ///     sluice fleet
    ///
    /// Columns: `requests`, `handles` and `backlog` are this host's own, at this moment: requests on the worker, KV
    /// handles it keeps blocks for, prompt tokens it has still to prefill. `tokens/s` (prefill) and `ms/token`
    /// (decode) are measured, - while unmeasured. `engine` is what the engine itself said last. A worker that is
    /// `spared` fails again and again, and is tried with one leg at a time until one goes well.
    #[command(verbatim_doc_comment)]
    Fleet(FleetArgs),
    /// Take a worker out without losing a request: it gets no new work, what it has runs to its end.
    ///
    ///     sluice drain main/prefill-0 --wait && systemctl stop vllm-prefill-0
    ///
    /// A prefill worker must go on serving KV reads until every handle to its blocks is used or has expired
    /// (pool.kv_lease_ms); only then is it safe to stop. The order lives in the host: it outlasts the engine's
    /// restarts, not the host's own. Give the worker work again with --undo.
    #[command(verbatim_doc_comment)]
    Drain(Drain),
    /// Look at, check, make and build policies.
    #[command(subcommand)]
    Policy(Policy),
    /// Look at the conversations that a running host remembers, and have some forgotten.
    #[command(subcommand)]
    Sessions(Sessions),
    /// Show what each tenant of a running host has: requests in flight and queued, tokens left.
    Tenants(Tenants),
    /// Read an API key from standard input and print the line that makes it a tenant's.
    ///
    /// The configuration holds digests of keys, never keys.
    ///
    ///     openssl rand -hex 32 | tee search.key | sluice tenant-key
    #[command(verbatim_doc_comment)]
    TenantKey,
    /// Run an engine emulator: vLLM's wire without a GPU, for demos and tests.
    ///
    /// It is no engine: tokens come from a hash of its KV cache, time from a stated model.
    Emulate(sluice_emulator::EmulateArgs),
    /// What a host starts to compile a policy: a component on standard input, its code on standard output.
    #[command(name = sluice_policy::COMPILE_COMMAND, hide = true)]
    CompilePolicy {
        /// How far it gives way to others.
        #[arg(allow_negative_numbers = true)]
        niceness: i32,
        /// The process that asks, with which it ends.
        parent: u32,
    },
}

/// `sluice serve`
#[derive(Debug, Args)]
pub struct Serve {
    /// The configuration; examples/configs/vllm-pull.toml explains every key.
    #[arg(long, short, default_value = "sluice.toml")]
    pub config: PathBuf,
    /// Log one JSON object a line.
    #[arg(long)]
    pub log_json: bool,
}

/// `sluice check-config`
#[derive(Debug, Args)]
pub struct CheckConfig {
    /// The configuration.
    #[arg(long, short, default_value = "sluice.toml")]
    pub config: PathBuf,
}

/// `sluice doctor`
#[derive(Debug, Args)]
pub struct Doctor {
    /// The configuration.
    #[arg(long, short, default_value = "sluice.toml")]
    pub config: PathBuf,
    /// Print one JSON object, for programs.
    #[arg(long)]
    pub json: bool,
}

/// How a running host's admin API is reached.
#[derive(Debug, Clone, Args)]
pub struct AdminHost {
    /// The host's admin address, HOST:PORT.
    #[arg(long, default_value = "127.0.0.1:8001", value_name = "HOST:PORT")]
    pub admin: AdminAddress,
    /// The file with the token that the host asks for, if it has one: its server.admin_token_file.
    #[arg(long, env = "SLUICE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// `sluice fleet`
#[derive(Debug, Args)]
pub struct FleetArgs {
    /// Which host.
    #[command(flatten)]
    pub host: AdminHost,
}

/// `sluice drain`
#[derive(Debug, Args)]
pub struct Drain {
    /// The worker, as `sluice fleet` lists it.
    #[arg(value_name = "POOL/WORKER")]
    pub worker: String,
    /// Let it take work again.
    #[arg(long)]
    pub undo: bool,
    /// Wait until it is safe to stop; exits with 1 when that takes longer than --wait-s.
    #[arg(long)]
    pub wait: bool,
    /// How long to wait at most, in seconds.
    #[arg(long, default_value_t = 3_600, value_parser = clap::value_parser!(u32).range(1..))]
    pub wait_s: u32,
    /// Which host.
    #[command(flatten)]
    pub host: AdminHost,
}

/// `sluice tenants`
#[derive(Debug, Args)]
pub struct Tenants {
    /// Which host.
    #[command(flatten)]
    pub host: AdminHost,
}

/// `sluice sessions ...`
#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// List conversations, those with the last turns first.
    ///
    ///     sluice sessions list --holder main/decode-0
    ///
    /// Columns: `holder` decoded the last turn, `tokens` is what that turn came to, `held` is what an engine keeps of it for the next
    /// one. A conversation that its client gives no name is `derived` from its history.
    #[command(verbatim_doc_comment)]
    List(SessionsList),
    /// Show one conversation in full, for each model and endpoint that it was had with.
    Show(SessionsShow),
    /// Have conversations forgotten, and what engines keep of them let go: one by its id, or all of a holder or tenant.
    ///
    ///     sluice sessions drop --holder main/decode-0
    #[command(verbatim_doc_comment)]
    Drop(SessionsDrop),
}

/// Which conversations.
#[derive(Debug, Clone, Default, Args)]
pub struct WhichSessions {
    /// Those whose last turn this worker decoded, as `sluice fleet` lists it.
    #[arg(long, value_name = "POOL/WORKER")]
    pub holder: Option<String>,
    /// Those of this tenant.
    #[arg(long)]
    pub tenant: Option<String>,
}

/// `sluice sessions list`
#[derive(Debug, Args)]
pub struct SessionsList {
    /// Which ones.
    #[command(flatten)]
    pub which: WhichSessions,
    /// How many at most.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub limit: u16,
    /// Print one JSON object, for programs.
    #[arg(long)]
    pub json: bool,
    /// Which host.
    #[command(flatten)]
    pub host: AdminHost,
}

/// `sluice sessions show`
#[derive(Debug, Args)]
pub struct SessionsShow {
    /// The conversation, as `sluice sessions list` names it.
    pub id: String,
    /// Of this tenant alone.
    #[arg(long)]
    pub tenant: Option<String>,
    /// Print one JSON object, for programs.
    #[arg(long)]
    pub json: bool,
    /// Which host.
    #[command(flatten)]
    pub host: AdminHost,
}

impl SessionsShow {
    /// What it is looked for among.
    pub fn tenant(&self) -> WhichSessions {
        WhichSessions { holder: None, tenant: self.tenant.clone() }
    }
}

/// `sluice sessions drop`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("some").args(["id", "holder", "tenant"]).required(true).multiple(true))]
pub struct SessionsDrop {
    /// One conversation, as `sluice sessions list` names it.
    pub id: Option<String>,
    /// Which ones.
    #[command(flatten)]
    pub which: WhichSessions,
    /// Which host.
    #[command(flatten)]
    pub host: AdminHost,
}

/// `sluice policy ...`
#[derive(Debug, Subcommand)]
pub enum Policy {
    /// List the policies of a running host: which are in force, which were refused and why.
    ///
    /// States: `loaded`; `refused` (the file cannot be used, and no older version is in force); `missing` (a
    /// policy that should decide has no file, the built-in default decides); `put-aside` (it failed in more than 1% of its
    /// last 1,000 calls, and at least 5 times: its last good version decides, else the built-in default); `removed-but-bound` (the file of a
    /// policy that decides is gone, its last good version stays in force); `settings-only` (a NAME.toml without NAME.wasm).
    List(PolicyList),
    /// List the bindings of a running host in the order in which they are tried: the first that matches a request says
    /// which workload it belongs to and which policy decides.
    ///
    ///     sluice policy bindings
    ///
    /// `line` is where a binding stands in bindings.toml. `state` is its policy's, as `sluice policy list` tells it, and
    /// `why` says what keeps it from deciding. A newer bindings.toml that was refused is told below the table: what is
    /// listed stays in force.
    #[command(verbatim_doc_comment)]
    Bindings(PolicyBindings),
    /// Show one policy of a running host in full: settings in force, bindings, calls, faults, earlier versions.
    ///
    ///     sluice policy show adaptive
    #[command(verbatim_doc_comment)]
    Show(PolicyShow),
    /// Explain the last decisions of a running host: who decided what for which request, and why.
    ///
    ///     sluice policy explain --last 5
    ///     sluice policy explain --request my-request-id
    ///
    /// The host keeps the last 1,024. `policy` is the name that was bound, `module` what lay under it then, as it names
    /// itself, with its version. `decided by` says who: `policy`; its last good version, since the newest was put
    /// aside (`last-good`); the built-in default, since the policy said so (`use-default`), failed (`fault`, with its
    /// kind), was put aside (`put-aside`), is not there (`not-loaded`) or is not configured (`builtin`); or the policy,
    /// which refused the request (`reject`).
    #[command(verbatim_doc_comment)]
    Explain(PolicyExplain),
    /// Do to policy files all that the host does before it puts them in force, and tell what came of it.
    ///
    ///     sluice policy check my-policy.wasm
    ///
    /// Settings are read from my-policy.toml beside the file, if it is there. Of each trial case the table says what the
    /// policy was shown: workers, requests on them, tokens of the prompt, those that some worker has cached, tokens of output
    /// at most; and what it answered.
    #[command(verbatim_doc_comment)]
    Check(PolicyCheck),
    /// Make a new policy: a crate that builds, tests and drops in.
    ///
    ///     sluice policy new my-policy && cd my-policy && cargo test
    #[command(verbatim_doc_comment)]
    New(PolicyNew),
    /// Build a policy crate into NAME.wasm.
    ///
    ///     sluice policy build && cp my-policy.wasm policies.d/adaptive.wasm
    ///
    /// A file decides under the name that `[policy] default` says, or that bindings.toml binds a workload to. Dropped
    /// over the file of that name it is live at once; under a name of its own it waits until it is bound.
    #[command(verbatim_doc_comment)]
    Build(PolicyBuild),
}

/// `sluice policy show`
#[derive(Debug, Args)]
pub struct PolicyShow {
    /// The policy, as `sluice policy list` names it.
    pub name: String,
    /// Print one JSON object, for programs.
    #[arg(long)]
    pub json: bool,
    /// Which host.
    #[command(flatten)]
    pub host: AdminHost,
}

/// `sluice policy explain`
#[derive(Debug, Args)]
pub struct PolicyExplain {
    /// How many decisions at most, the newest ones.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub last: u16,
    /// Only those of this request: its X-Request-Id, the client's own or the one that the host gave it.
    #[arg(long, value_name = "ID")]
    pub request: Option<String>,
    /// Print one JSON object a line, for programs.
    #[arg(long)]
    pub json: bool,
    /// Which host.
    #[command(flatten)]
    pub host: AdminHost,
}

/// `sluice policy list`
#[derive(Debug, Args)]
pub struct PolicyList {
    /// Which host.
    #[command(flatten)]
    pub host: AdminHost,
}

/// `sluice policy bindings`
#[derive(Debug, Args)]
pub struct PolicyBindings {
    /// Print one JSON object, for programs.
    #[arg(long)]
    pub json: bool,
    /// Which host.
    #[command(flatten)]
    pub host: AdminHost,
}

/// `sluice policy check`
#[derive(Debug, Args)]
pub struct PolicyCheck {
    /// Policy files.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// The host's configuration, for its limits on policies; without it the defaults hold.
    #[arg(long, short)]
    pub config: Option<PathBuf>,
}

/// `sluice policy new`
#[derive(Debug, Args)]
pub struct PolicyNew {
    /// Its name, like my-policy: the crate's, the folder's, and the file's.
    pub name: String,
    /// Where to make it.
    #[arg(long, default_value = ".")]
    pub parent: PathBuf,
}

/// `sluice policy build`
#[derive(Debug, Args)]
pub struct PolicyBuild {
    /// The policy's crate.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
}
