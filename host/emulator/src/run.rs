//! Starting, running and stopping an emulator.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;

use sluice_engine_sdk::{SlabError, wire};
use sluice_sim::{Engine, EngineConfig};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::client::EngineClient;
use crate::clock::Clock;
use crate::config::{EmulatorConfig, InvalidConfig, Role};
use crate::driver::{Driver, Ended, Watched};
use crate::hosted::{Attaching, Hosted, Shareable};
use crate::http::{self, App};
use crate::kv::{self, Identity};
use crate::listener::accept;
use crate::probe::Probe;
use crate::report::KvLink;

/// HTTP connections at a time: far above what a router opens to one engine.
const MAX_HTTP_CONNECTIONS: usize = 4_096;
/// KV connections at a time: one a transfer.
const MAX_KV_CONNECTIONS: usize = 1_024;

/// Why an emulator does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// See [`InvalidConfig`].
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// There is no memory for KV that the host moves.
    #[error("the KV slab: {0}; lower blocks")]
    Slab(#[from] SlabError),
    /// The thread of the KV link.
    #[error("cannot start the thread of the KV link: {0}")]
    Thread(std::io::Error),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} ({setting}): {source}; choose another port, or 0 for any")]
    Listen {
        /// Which setting named it.
        setting: &'static str,
        /// As set.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
}

/// The engine died, as a real one would have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the engine died: {reason}")]
pub struct Died {
    /// What killed it.
    pub reason: String,
}

impl Died {
    pub(crate) fn gone() -> Self {
        Self { reason: "it is gone".into() }
    }
}

/// Why [`run_until`] ended early.
#[derive(Debug, Error)]
pub enum RunError {
    /// It never ran.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It died.
    #[error(transparent)]
    Died(#[from] Died),
}

/// A running emulator. Dropping it ends it.
#[derive(Debug)]
pub struct Emulator {
    http_addr: SocketAddr,
    kv_addr: SocketAddr,
    engine_id: String,
    banner: String,
    probe: Probe,
    /// One task, which owns all others: when the engine dies, the sockets close, whoever watches.
    supervisor: JoinSet<Died>,
}

impl Emulator {
    /// Where its HTTP API is.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Where other engines read its KV.
    pub fn kv_addr(&self) -> SocketAddr {
        self.kv_addr
    }

    /// Its engine id, another one with each start.
    pub fn engine_id(&self) -> &str {
        &self.engine_id
    }

    /// One line that says what runs where, for the caller to print.
    pub fn banner(&self) -> &str {
        &self.banner
    }

    /// A look inside, for tests.
    pub fn engine(&self) -> Probe {
        self.probe.clone()
    }

    /// Waits until the engine dies. It never ends by itself otherwise.
    pub async fn died(&mut self) -> Died {
        match self.supervisor.join_next().await {
            Some(Ok(died)) => died,
            Some(Err(error)) => Died { reason: error.to_string() },
            None => Died::gone(),
        }
    }

    /// Ends it; open connections break.
    pub async fn stop(mut self) {
        self.supervisor.shutdown().await;
    }
}

/// Ends all tasks with the first that ends: the listeners never do, so it is the engine.
async fn supervise(mut tasks: JoinSet<Ended>) -> Died {
    let first = tasks.join_next().await;
    tasks.shutdown().await;
    let reason = match first {
        Some(Ok(Err(reason))) => reason,
        Some(Err(error)) => format!("a task of the emulator failed: {error}"),
        Some(Ok(Ok(()))) | None => return Died::gone(),
    };
    tracing::error!(reason, "the engine died");
    Died { reason }
}

/// Starts an emulator; it is ready when this returns.
pub async fn start(config: EmulatorConfig) -> Result<Emulator, StartError> {
    let engine_config = config.engine()?;
    let (http_listener, http_addr) = bind("listen", config.listen).await?;
    let (kv_listener, kv_addr) = bind("kv_listen", config.kv_listen).await?;
    let clock = Clock::start();
    let engine_id = engine_id();
    let (engine, hosted) = engine(&config, engine_config, http_addr)?;
    let banner = banner(&config, http_addr, kv_addr, &engine_id);
    let (sender, commands) = mpsc::unbounded_channel();
    let client = EngineClient::new(sender);
    let (changes, snapshots) = watch::channel(engine.occupancy());
    let (link_changes, links) = watch::channel(KvLink::default());
    let watched = Watched { snapshots: changes, links: link_changes };
    let probe = Probe { client: client.clone(), snapshots, links };
    let block_bytes = (config.block_tokens * config.kv_bytes_per_token) as u32;
    let identity = Identity { engine_id: engine_id.clone(), block_bytes };
    let app =
        Arc::new(App::new(config.clone(), client.clone(), clock, engine_id.clone(), kv_addr, http_addr));

    let mut tasks = JoinSet::new();
    tasks.spawn(Driver::new(engine, config, clock, commands, watched, hosted).run());
    tasks.spawn(async move {
        accept(http_listener, MAX_HTTP_CONNECTIONS, move |stream, _| http::serve(stream, app.clone())).await;
        Ok(())
    });
    tasks.spawn(async move {
        accept(kv_listener, MAX_KV_CONNECTIONS, move |stream, peer| {
            let serving = kv::serve(stream, identity.clone(), client.clone());
            async move {
                if let Err(error) = serving.await {
                    tracing::warn!(%peer, %error, "a KV reader was cut off");
                }
            }
        })
        .await;
        Ok(())
    });
    let mut supervisor = JoinSet::new();
    supervisor.spawn(supervise(tasks));
    Ok(Emulator { http_addr, kv_addr, engine_id, banner, probe, supervisor })
}

/// The engine, and its way to the host, where that moves KV.
fn engine(
    config: &EmulatorConfig,
    engine_config: EngineConfig,
    http_addr: SocketAddr,
) -> Result<(Engine, Option<Hosted>), StartError> {
    let Some(socket) = config.kv_link.clone() else {
        return Ok((Engine::new(engine_config).map_err(InvalidConfig::from)?, None));
    };
    let shared = Shareable::create(&engine_config)?;
    let engine = Engine::in_memory(engine_config, shared.memory()).map_err(InvalidConfig::from)?;
    let role = match config.role {
        Role::Prefill => wire::Role::Prefill,
        Role::Decode => wire::Role::Decode,
        Role::Unified => wire::Role::Unified,
    };
    let (name, model) = (engine_name(config, http_addr), config.model.clone());
    let attaching = Attaching { socket, name, role, model, shared };
    let hosted = Hosted::start(attaching, &engine).map_err(StartError::Thread)?;
    Ok((engine, Some(hosted)))
}

/// What the host knows it by.
fn engine_name(config: &EmulatorConfig, http_addr: SocketAddr) -> String {
    config.name.clone().unwrap_or_else(|| format!("{}-{}", config.role.name(), http_addr.port()))
}

fn banner(config: &EmulatorConfig, http_addr: SocketAddr, kv_addr: SocketAddr, engine_id: &str) -> String {
    let kv = match &config.kv_link {
        None => format!("KV on {kv_addr}"),
        Some(path) => {
            format!("KV by the host at {} as {}", path.display(), engine_name(config, http_addr))
        }
    };
    let (role, version, model) = (config.role.name(), config.wire.version(), &config.model);
    format!(
        "sluice emulator ({role}, no real engine, wire of vLLM {version}): model {model} on http://{http_addr}, {kv}, \
         engine {engine_id}"
    )
}

/// Runs an emulator until `shutdown` resolves or the engine dies. `ready` gets the banner once it listens.
pub async fn run_until(
    config: EmulatorConfig,
    ready: impl FnOnce(&str),
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let mut emulator = start(config).await?;
    ready(emulator.banner());
    tokio::select! {
        died = emulator.died() => return Err(died.into()),
        () = shutdown => {}
    }
    emulator.stop().await;
    Ok(())
}

async fn bind(setting: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { setting, address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// A random UUID. A restarted engine must be told apart from its former self, whose blocks are gone.
fn engine_id() -> String {
    let state = RandomState::new();
    let (high, low) = (state.hash_one(0_u8), state.hash_one(1_u8));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | (low >> 48) & 0x3fff,
        low & 0xffff_ffff_ffff
    )
}
