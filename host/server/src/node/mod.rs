//! This host as the mover of KV: the engines of its machine that attach by the KV link, what they are told of requests,
//! and what is told of them. Only hosts with a host-managed pool have a node.

mod events;
mod figures;
pub mod hand_over;
pub mod status;

use std::sync::Arc;
use std::time::Duration;

use sluice_transfer::exchange;
use sluice_transfer::fabric::ShmSettings;
use sluice_transfer::link;
use sluice_transfer::node::{Node, NodeHandle, NodeSettings};
use sluice_transfer::protocol::limits::Limits;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::app::App;
use crate::clock::{Clock, millis};
use crate::config::{self, Config, ConfigError};
use crate::fleet::Fleet;
use crate::restarting::restarting;
use crate::telemetry::Telemetry;

/// A node that runs.
pub struct KvNode {
    node: Node,
    changed: Arc<Notify>,
}

impl KvNode {
    /// Starts one, if a pool needs it.
    pub fn start(
        config: &Config,
        clock: &Arc<dyn Clock>,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Option<Self>, ConfigError> {
        if !config.moves_kv() {
            return Ok(None);
        }
        let changed = Arc::new(Notify::new());
        let clock = clock.clone();
        let time: exchange::Clock = Arc::new(move || millis(clock.elapsed()));
        let tell = events::teller(telemetry.clone(), changed.clone());
        let node =
            Node::start(settings(&config.transfer), time, tell).map_err(|error| no_place(config, &error))?;
        tracing::info!(socket = %config.transfer.socket.display(), "engines attach their KV here");
        figures::register(telemetry, config, node.handle());
        Ok(Some(Self { node, changed }))
    }

    /// A way to it.
    pub fn handle(&self) -> &NodeHandle {
        self.node.handle()
    }

    /// Keeps pools told of which engines are attached, until the set is dropped.
    pub fn watch(&self, app: &Arc<App>) -> JoinSet<()> {
        let (node, changed, app) = (self.handle().clone(), self.changed.clone(), app.clone());
        let telemetry = app.telemetry.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(restarting("kv_attachments", telemetry, move || {
            let (node, changed, app) = (node.clone(), changed.clone(), app.clone());
            async move {
                loop {
                    // What is told is that something changed; what holds now is read. So nothing can be missed.
                    take_in(&node, &app);
                    while timeout(LOOK_AT_SOCKET, changed.notified()).await.is_err() {
                        tell_missing_socket(&app);
                    }
                }
            }
        }));
        tasks
    }

    /// Ends every transfer, lets every engine go, and stops, within some seconds.
    pub async fn stop(self) {
        let stopped = tokio::task::spawn_blocking(move || self.node.stop()).await;
        match stopped {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("the KV node did not stop well: {error}"),
            Err(error) => tracing::error!("the KV node did not stop: {error}"),
        }
    }
}

/// Between looks at the socket's place.
const LOOK_AT_SOCKET: Duration = Duration::from_secs(10);

/// Engines that are attached go on without it, but none can attach any more.
fn tell_missing_socket(app: &App) {
    let socket = &app.config.transfer.socket;
    if let Err(error) = std::fs::symlink_metadata(socket) {
        app.telemetry.warn_once("kv_link socket", || {
            format!(
                "the KV link's socket {} is gone ({error}): engines that are attached go on, no other can attach; start this \
                 host anew",
                socket.display()
            )
        });
    }
}

/// Whether what is at the socket's place already would keep a host from starting.
pub fn check_place(config: &Config) -> Result<(), ConfigError> {
    if !config.moves_kv() {
        return Ok(());
    }
    if let Some(what) = config.transfer.no_folder() {
        let cure = "make the folder, or set [transfer] socket to a path elsewhere".to_owned();
        return Err(config::in_use(config, "transfer", "socket", what, cure));
    }
    link::check_place(&config.transfer.socket).map_err(|error| no_place(config, &error))
}

fn no_place(config: &Config, error: &dyn std::error::Error) -> ConfigError {
    let cure = "set [transfer] socket to a path in a folder that this user alone may write, and where no other host \
                listens";
    let what = format!("engines cannot attach at {}: {error}", config.transfer.socket.display());
    config::in_use(config, "transfer", "socket", what, cure.to_owned())
}

fn settings(transfer: &config::Transfer) -> NodeSettings {
    NodeSettings {
        socket: transfer.socket.clone(),
        link: link::Settings { other_uids: transfer.other_uids.clone(), ..link::Settings::default() },
        limits: Limits::default(),
        shm: ShmSettings { threads: transfer.copy_threads, ..ShmSettings::default() },
    }
}

/// What warnings of engines that are not attached are remembered by.
pub const NOT_ATTACHED: &str = "not_attached";

fn take_in(node: &NodeHandle, app: &App) {
    let engines = node.engines();
    // Whoever is still missing, or missing again, is told again.
    app.telemetry.forget_prefix(NOT_ATTACHED);
    for pool in app.fleet.pools() {
        for why in pool.see_attached(&engines) {
            tracing::warn!(pool = pool.config.name, "no KV is moved for an attached engine: {why}");
        }
        if let Some((one, other, apart)) = pool.layouts_apart() {
            let key = format!("layouts {} {one} {other}", pool.config.name);
            app.telemetry.warn_once(&key, || {
                let name = &pool.config.name;
                format!("engines {one:?} and {other:?} of pool {name:?} cannot exchange KV: {apart}")
            });
        }
    }
    // What is gone with its engine takes no room from what its next life keeps.
    app.kept.end_lost(app);
    let is_known = |name: &str| {
        let mut workers = app.fleet.pools().iter().flat_map(|pool| &pool.workers);
        workers.any(|worker| worker.engine.as_deref() == Some(name))
    };
    for engine in engines.iter().filter(|engine| !is_known(&engine.name)) {
        app.telemetry.warn_once(&format!("stray engine {}", engine.name), || {
            format!(
                "engine {:?} is attached, and no worker of a host-managed pool has this name: its KV is not moved. Not \
                 attached yet: {}. Cure: give the engine one of these names, or set the worker's engine = {:?}",
                engine.name,
                awaited(&app.fleet),
                engine.name
            )
        });
    }
}

/// Names of engines that could attach and have not, for people.
fn awaited(fleet: &Fleet) -> String {
    let workers = fleet.pools().iter().flat_map(|pool| &pool.workers);
    let missing = workers.filter(|worker| worker.attached_engine().is_none());
    let names: Vec<_> = missing.filter_map(|worker| worker.engine.as_deref()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
