//! Who is measured: started as its users would, in front of the same mock engines.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use sluice_harness::{Host, HostPlan, PolicyFile, ProcessTree, artifacts, until};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::canned::MODEL;
use crate::cases::{CASES, Case, Mode};
use crate::load::exchange;
use crate::{nginx, vllm_router};

/// Until a router answers its first request. A Python launcher takes seconds to import.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// Engines of each role: enough for a choice.
pub const ENGINES_PER_ROLE: usize = 2;

/// Policies in the folder of every Sluice host: an operator has more than the one that decides.
pub const POLICIES: [(&str, &str); 7] = [
    ("adaptive", "adaptive"),
    ("round-robin", "round-robin"),
    ("least-loaded", "least-loaded"),
    ("random", "random"),
    ("vllm-defaults", "vllm-defaults"),
    ("hello-policy", "hello-policy"),
    ("adaptive-2", "adaptive"),
];

/// Which router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// None: clients ask an engine.
    Direct,
    /// nginx, round robin over kept connections.
    Nginx,
    /// vllm-router.
    VllmRouter,
    /// This project's host.
    Sluice,
}

/// All of them, in the table's order.
pub const KINDS: [Kind; 4] = [Kind::Direct, Kind::Nginx, Kind::VllmRouter, Kind::Sluice];

impl Kind {
    /// As on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::VllmRouter => "vllm-router",
            Self::Sluice => "sluice",
        }
    }

    /// Whether it can serve so at all.
    pub fn serves(self, mode: Mode) -> bool {
        mode == Mode::Plain || matches!(self, Self::VllmRouter | Self::Sluice)
    }
}

/// Addresses of mock engines: plain requests go to the first ones; the others are prefill and decode engines.
#[derive(Debug, Clone)]
pub struct Engines {
    /// Serve alone.
    pub plain: Vec<SocketAddr>,
    /// Take the first leg.
    pub prefill: Vec<SocketAddr>,
    /// Take the second leg.
    pub decode: Vec<SocketAddr>,
    _process: std::sync::Arc<Child>,
}

impl Engines {
    /// Starts them all in one process.
    pub async fn start() -> anyhow::Result<Self> {
        let binary = beside_this("mock-engine")?;
        let ports = 3 * ENGINES_PER_ROLE;
        let mut child = Command::new(&binary)
            .args(["--ports", &ports.to_string()])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", binary.display()))?;
        let stdout = child.stdout.take().context("the mock engine has no standard output")?;
        let line = BufReader::new(stdout).lines().next_line().await?.unwrap_or_default();
        let addresses: Vec<SocketAddr> = line.split(' ').filter_map(|text| text.parse().ok()).collect();
        let [plain, prefill, decode] = [0, 1, 2].map(|role| {
            addresses.iter().copied().skip(role * ENGINES_PER_ROLE).take(ENGINES_PER_ROLE).collect::<Vec<_>>()
        });
        if decode.len() != ENGINES_PER_ROLE {
            bail!("the mock engine said {line:?} instead of {ports} addresses");
        }
        Ok(Self { plain, prefill, decode, _process: child.into() })
    }
}

/// A running router.
#[derive(Debug)]
pub struct Peer {
    /// Which.
    pub kind: Kind,
    /// What it serves.
    pub mode: Mode,
    /// Where.
    pub address: SocketAddr,
    /// Its processes; none for the engine itself.
    pub processes: Option<ProcessTree>,
    /// Resident memory when it had answered once, in bytes.
    pub idle_bytes: u64,
    _running: Running,
}

/// What ends a router when dropped.
#[derive(Debug)]
enum Running {
    Nothing,
    Process { _child: Box<Child>, _folder: tempfile::TempDir },
    Sluice { _host: Box<Host> },
}

impl Peer {
    /// Starts one and waits until it answers rightly.
    pub async fn start(kind: Kind, mode: Mode, engines: &Engines, peers: &Path) -> anyhow::Result<Self> {
        let mut peer = match kind {
            Kind::Direct => Self::new(kind, mode, engines.plain[0], None, Running::Nothing),
            Kind::Nginx | Kind::VllmRouter => Self::start_process(kind, mode, engines, peers)?,
            Kind::Sluice => Self::start_sluice(mode, engines).await?,
        };
        if kind == Kind::VllmRouter {
            vllm_router::until_healthy(peer.address, ANSWERS_WITHIN).await?;
        }
        peer.until_it_answers().await?;
        peer.idle_bytes = peer.processes.map_or(0, ProcessTree::resident_bytes);
        Ok(peer)
    }

    fn new(
        kind: Kind,
        mode: Mode,
        address: SocketAddr,
        processes: Option<ProcessTree>,
        running: Running,
    ) -> Self {
        Self { kind, mode, address, processes, idle_bytes: 0, _running: running }
    }

    fn start_process(kind: Kind, mode: Mode, engines: &Engines, peers: &Path) -> anyhow::Result<Self> {
        let address = free_address()?;
        let folder = tempfile::TempDir::with_prefix("sluice-peer-")?;
        let mut command = match kind {
            Kind::Nginx => nginx::command(address, engines, peers, folder.path())?,
            _ => vllm_router::command(address, free_address()?, mode, engines, peers)?,
        };
        let log = std::fs::File::create(folder.path().join("log"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", kind.name()))?;
        let tree = child.id().map(ProcessTree::of);
        Ok(Self::new(
            kind,
            mode,
            address,
            tree,
            Running::Process { _child: Box::new(child), _folder: folder },
        ))
    }

    /// A host with seven policies in its folder: `round-robin` decides plain requests, `adaptive` split ones.
    async fn start_sluice(mode: Mode, engines: &Engines) -> anyhow::Result<Self> {
        let (mut plan, policy) = match mode {
            Mode::Plain => (HostPlan::new(sluice_harness::Mode::Unified), "round-robin"),
            Mode::Split => (HostPlan::new(sluice_harness::Mode::Pull), "adaptive"),
        };
        plan = HostPlan { model: MODEL.into(), ..plan }.policy(policy);
        let workers: &[(&'static str, &[SocketAddr])] = match mode {
            Mode::Plain => &[("unified", &engines.plain)],
            Mode::Split => &[("prefill", &engines.prefill), ("decode", &engines.decode)],
        };
        for (role, addresses) in workers {
            for address in *addresses {
                plan = plan.worker(role, &format!("http://{address}"));
            }
        }
        let policies = POLICIES.map(|(name, built)| PolicyFile::policy(name, built));
        let policies: Vec<_> = policies.into_iter().collect::<Result<_, _>>()?;
        let mut host = Host::start(&plan, &policies).await?;
        host.until_ready().await?;
        until("all policies to be loaded", ANSWERS_WITHIN, async || {
            let listed = host.policies().await.ok()?;
            let loaded = listed.policies.iter().filter(|policy| policy.digest.is_some()).count();
            (loaded == POLICIES.len()).then_some(())
        })
        .await?;
        let address = host.client().base().trim_start_matches("http://").parse()?;
        let tree = host.process().pid().map(ProcessTree::of);
        Ok(Self::new(Kind::Sluice, mode, address, tree, Running::Sluice { _host: Box::new(host) }))
    }

    async fn until_it_answers(&self) -> anyhow::Result<()> {
        let case = CASES.into_iter().find(|case| case.mode == self.mode).unwrap_or(CASES[0]);
        let mut last = None;
        let what = format!("{} to answer", self.kind.name());
        let answered = until(&what, ANSWERS_WITHIN, async || {
            last = exchange(&case.load(self.address), &mut None).await.err();
            last.is_none().then_some(())
        })
        .await;
        answered.with_context(|| last.map_or(String::new(), |error| format!("{error:#}")))
    }

    /// Whether it takes part in a case.
    pub fn serves(&self, case: Case) -> bool {
        self.mode == case.mode
    }
}

/// A port that was free a moment ago, for programs that cannot take port 0 and tell.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// A binary of this crate, beside the one that runs.
fn beside_this(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    bail!("{} is not built: run `cargo build -p sluice-peers`", path.display())
}

/// The binary under test, for messages.
pub fn sluice_binary() -> anyhow::Result<PathBuf> {
    Ok(artifacts::binary()?)
}
