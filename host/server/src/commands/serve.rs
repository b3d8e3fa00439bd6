//! `sluice serve`: read the configuration, bind, load the policies, serve, drain.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::{HostConfig, OpenError, PolicyHost};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::{Signals, complain, descriptors, say};
use crate::app::App;
use crate::cli;
use crate::clock::{SystemClock, millis};
use crate::config::{self, Config, ConfigError, PolicyCache, Secrets};
use crate::fleet::{kv_watch, probe};
use crate::kept;
use crate::kept::saved::SavedTurns;
use crate::listen::{self, Serving, TlsServing};
use crate::node::KvNode;
use crate::policy_cache;
use crate::policy_events::{self, PolicyEvents};
use crate::release::{self, Releasing};
use crate::routes;
use crate::sessions;
use crate::sessions::saving::{self, NotOurs, Place, Saver, SnapshotFile};
use crate::telemetry::otlp::Exporter;
use crate::telemetry::{self, Telemetry};
use crate::threads::{self, DataThreads};
use crate::tls::{self, Renewal, Renewed, ServerTls, TlsError};
use crate::upstream::Upstream;

/// Connections of clients per request in flight: most clients keep idle ones for their next request.
const CONNECTIONS_PER_REQUEST: usize = 2;

/// Connections of operators.
const ADMIN_CONNECTIONS_AT_MOST: usize = 64;

/// Runs the host until it is told to stop.
pub fn run(args: &cli::Serve) -> ExitCode {
    telemetry::start_logs(args.log_json);
    let config = match config::load(&args.config) {
        Ok(config) => config,
        Err(error) => return refuse(&error),
    };
    let secrets = match Secrets::read(&config) {
        Ok(secrets) => secrets,
        Err(error) => return refuse(&error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("cannot start the runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(host(config, secrets));
    // Probes and idle connections have nothing to finish.
    runtime.shutdown_background();
    code
}

async fn host(config: Config, secrets: Secrets) -> ExitCode {
    let bound = async {
        let clients = bind(&config, config.server.listen, "listen").await?;
        let operators = bind(&config, config.server.admin_listen, "admin_listen").await?;
        Ok::<_, ConfigError>((clients, operators))
    };
    let (clients, operators) = match bound.await {
        Ok(listeners) => listeners,
        Err(error) => return refuse(&error),
    };
    let (tls, upstream) = match secured(&config) {
        Ok(secured) => secured,
        Err(error) => return refuse(&error),
    };
    let telemetry = Arc::new(Telemetry::new(&config.telemetry));
    config.notes().iter().for_each(|note| tracing::warn!("{note}"));
    if config.policy.default != config::BUILTIN {
        telemetry.metrics.expect_policy(&config.policy.default);
    }
    let events = {
        let models = config.pools.iter().map(|pool| pool.model.clone()).collect();
        PolicyEvents::new(telemetry.clone(), config.policy.folder.clone(), models)
    };
    let policies = match PolicyHost::open(host_config(&config), Arc::new(events)) {
        Ok(policies) => policies,
        Err(error) => return refuse(&policy_folder(&config, &error)),
    };
    let _watcher = match policies.watch() {
        Ok(watcher) => watcher,
        Err(error) => return refuse(&policy_folder(&config, &error)),
    };
    let (releases, holds) = release::queue();
    let clock = SystemClock::shared();
    let node = match KvNode::start(&config, &clock, &telemetry) {
        Ok(node) => node,
        Err(error) => return refuse(&error),
    };
    let snapshot = match snapshot_file(&config) {
        Ok(snapshot) => snapshot,
        Err(error) => return refuse(&error),
    };
    let mut app = App::new(config, &secrets, upstream, policies, telemetry, clock, releases);
    app.node = node.as_ref().map(|node| node.handle().clone());
    let app = Arc::new(app);
    let attachments = node.as_ref().map(|node| node.watch(&app));
    let keeps_turns = app.config.pools.iter().any(|pool| pool.mode.keeps_turns());
    let wheel = keeps_turns.then(|| kept::wheel::turn(&app));
    let saver = snapshot.map(|file| {
        let place = Place { file: Arc::new(file), holds: Arc::new(SavedTurns::of(&app)) };
        saving::restore(&app, &place);
        Saver::start(&app, place)
    });
    let releasing = Releasing::start(app.clone(), holds);
    let code = serve(app.clone(), clients, operators, tls).await;
    // Nothing is taken any more.
    drop((attachments, wheel));
    let ended = if saver.is_none() { app.kept.end_all(&*app) } else { Vec::new() };
    releasing.finish(&app, ended).await;
    if let Some(saver) = saver {
        saver.finish().await;
    }
    if let Some(node) = node {
        node.stop().await;
    }
    code
}

/// Where sessions outlive this process, if they do.
fn snapshot_file(config: &Config) -> Result<Option<SnapshotFile>, ConfigError> {
    let taken = config.sessions.snapshot_file.as_deref().map(SnapshotFile::take).transpose();
    taken.map_err(|error: NotOurs| unusable_snapshot(config, &error))
}

fn unusable_snapshot(config: &Config, error: &NotOurs) -> ConfigError {
    config::in_use(config, "sessions", "snapshot_file", error.to_string(), error.cure().into())
}

/// TLS towards clients, if they see a certificate, and the client towards workers.
pub(super) fn secured(config: &Config) -> Result<(Option<ServerTls>, Upstream), ConfigError> {
    let server = config.server.tls.as_ref().map(tls::server_acceptor).transpose();
    let server = server.map_err(|error| {
        let is_key = config.server.tls.as_ref().is_some_and(|tls| error.path() == Some(&tls.key_file));
        unusable(config, "server", if is_key { "tls_key_file" } else { "tls_cert_file" }, &error)
    })?;
    Ok((server, upstream(config, threads::wanted())?))
}

/// The client towards workers, as configured, for so many threads.
pub(super) fn upstream(config: &Config, threads: usize) -> Result<Upstream, ConfigError> {
    let connector = tls::client_connector(&config.upstream);
    let connector = connector.map_err(|error| {
        let at_fault = |file: &Path| error.path() == Some(file);
        let key = match &config.upstream.client {
            Some(client) if at_fault(&client.key_file) => "client_key_file",
            Some(client) if at_fault(&client.cert_file) => "client_cert_file",
            _ => "ca_file",
        };
        unusable(config, "upstream", key, &error)
    })?;
    Ok(Upstream::new(Duration::from_millis(config.server.connect_timeout_ms), threads, connector))
}

fn unusable(config: &Config, table: &str, key: &str, error: &TlsError) -> ConfigError {
    config::in_use(config, table, key, error.to_string(), error.cure().into())
}

fn refuse(error: &ConfigError) -> ExitCode {
    complain(&error.to_string());
    ExitCode::from(error.exit_code())
}

pub(super) fn policy_folder(config: &Config, error: &OpenError) -> ConfigError {
    config::in_use(config, "policy", "folder", error.to_string(), error.cure())
}

async fn serve(
    app: Arc<App>,
    clients: TcpListener,
    operators: TcpListener,
    tls: Option<ServerTls>,
) -> ExitCode {
    tell_missing_policy(&app);
    let exporter = export(&app);
    let _probes = probe::start(&app.fleet, &app.upstream, &app.telemetry);
    let _kv_probes = kv_watch::start(&app.fleet, &app.upstream, &app.telemetry);
    let (stop, stopped) = watch::channel(false);
    let connections = connections_at_most(&app) + ADMIN_CONNECTIONS_AT_MOST;
    descriptors::want(descriptors::of_full_host(connections, app.config.server.max_in_flight));
    let signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => {
            complain(&format!("cannot listen for signals: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let threads = match DataThreads::start(threads::wanted()) {
        Ok(threads) => Arc::new(threads),
        Err(error) => {
            complain(&format!("cannot start the threads that serve clients: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let (acceptor, renewal) = tls.map(|tls| (tls.acceptor, tls.renewal)).unzip();
    let serving = serving(&app, acceptor, threads, stopped);
    tell_plain_admin(&app);
    announce(&app, &clients, &operators);
    let data = {
        let (app, serving) = (app.clone(), serving.clone());
        async move {
            // Clients wait for as long as it takes to know who there is.
            probe::first_look(&app.fleet).await;
            listen::serve(clients, serving, move |request| routes::data_plane(app.clone(), request)).await
        }
    };
    let admin = {
        let app = app.clone();
        // Probes and operators keep off the threads that serve clients.
        let serving =
            Serving { connections_at_most: ADMIN_CONNECTIONS_AT_MOST, tls: None, threads: None, ..serving };
        listen::serve(operators, serving, move |request| {
            let response = routes::admin(&app, &request);
            async move { Ok(response) }
        })
    };
    let (_, cut_off, _) = tokio::join!(
        async {
            until_told_to_stop(&app, signals, renewal).await;
            // The receivers live in the two servers above.
            let _ = stop.send(true);
        },
        data,
        admin,
    );
    if cut_off > 0 {
        tracing::warn!(cut_off, "connections were cut off when server.drain_timeout_ms was over");
    }
    if let Some(exporter) = exporter {
        exporter.flush().await;
    }
    tracing::info!("stopped");
    ExitCode::SUCCESS
}

/// How clients are served.
fn serving(
    app: &App,
    acceptor: Option<TlsAcceptor>,
    threads: Arc<DataThreads>,
    stop: watch::Receiver<bool>,
) -> Serving {
    let server = &app.config.server;
    let failures = app.telemetry.metrics.tls_handshake_failures().clone();
    Serving {
        tls: acceptor.map(|acceptor| TlsServing { acceptor, failures }),
        connections_at_most: connections_at_most(app),
        header_timeout: Duration::from_millis(server.header_timeout_ms),
        request_timeout: Duration::from_millis(server.request_timeout_ms),
        drain_timeout: Duration::from_millis(server.drain_timeout_ms),
        stop,
        threads: Some(threads),
    }
}

/// Clients' connections.
fn connections_at_most(app: &App) -> usize {
    let server = &app.config.server;
    server.max_in_flight.saturating_mul(CONNECTIONS_PER_REQUEST) + server.max_queued
}

fn export(app: &App) -> Option<Exporter> {
    let config = &app.config.telemetry;
    let collector = config.otlp_endpoint.as_ref()?;
    Some(Exporter::start(&app.telemetry, &app.upstream, collector, &config.service_name))
}

/// Ends when balancers had their time to notice that the host was told to stop.
async fn until_told_to_stop(app: &Arc<App>, signals: Signals, renewal: Option<Renewal>) {
    tokio::select! {
        () = signals.stop() => {}
        () = sweep_sessions(app) => {}
        () = renew_certificate(app, renewal) => {}
    }
    app.start_draining();
    tracing::info!(in_flight = app.admission.running(), "draining");
    tokio::time::sleep(Duration::from_millis(app.config.server.drain_delay_ms)).await;
}

async fn sweep_sessions(app: &Arc<App>) {
    loop {
        tokio::time::sleep(sessions::SWEEP_INTERVAL).await;
        let app = app.clone();
        let swept = tokio::task::spawn_blocking(move || {
            let now_ms = millis(app.clock.elapsed());
            app.sessions.sweep(now_ms, &mut |key, why| sessions::ends::evicted(&app, key, why));
        });
        if let Err(error) = swept.await {
            tracing::error!("expired sessions were not swept: {error}");
        }
    }
}

/// Takes renewed certificates. Without TLS there is nothing to renew.
async fn renew_certificate(app: &App, renewal: Option<Renewal>) {
    let Some(mut renewal) = renewal else { return std::future::pending().await };
    loop {
        tokio::time::sleep(tls::RENEWAL_INTERVAL).await;
        let looked = tokio::task::spawn_blocking(move || (renewal.look(), renewal)).await;
        let found;
        (found, renewal) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                tracing::error!("certificates are not renewed any more: {error}");
                return std::future::pending().await;
            }
        };
        match found {
            Renewed::Unchanged => {}
            Renewed::Taken => {
                app.telemetry.metrics.tls_renewal("taken");
                tracing::info!("a renewed certificate is in force");
            }
            Renewed::Refused(error) => {
                app.telemetry.metrics.tls_renewal("refused");
                tracing::error!("the old certificate stays in force: {error}; {}", error.cure());
            }
        }
    }
}

async fn bind(config: &Config, address: SocketAddr, key: &str) -> Result<TcpListener, ConfigError> {
    listen::bind(address).await.map_err(|error| {
        let cure = format!("stop what listens there, or set server.{key} to a free port");
        config::in_use(config, "server", key, format!("cannot listen on {address}: {error}"), cure)
    })
}

/// The admin API is plain HTTP: beyond this machine its token can be read on the way.
fn tell_plain_admin(app: &App) {
    let address = app.config.server.admin_listen;
    if !address.ip().to_canonical().is_loopback() {
        tracing::warn!(
            "the admin API on {address} is plain HTTP, its token too: keep it within a network you trust"
        );
    }
}

/// A deciding policy that is not there is told at the start, not with the first request.
fn tell_missing_policy(app: &App) {
    let wanted = &app.config.policy.default;
    let generation = app.policies.generation();
    if wanted != config::BUILTIN && generation.default_policy().is_none() {
        policy_events::tell_missing(&app.telemetry, wanted, &app.config.policy.folder, &generation);
    }
}

/// The program that runs, also where its file was replaced since: the code that it compiles is for this one.
const SELF: &str = "/proc/self/exe";

fn host_config(config: &Config) -> HostConfig {
    let policy = &config.policy;
    let cache_folder = policy_cache::folder(&policy.cache, |name| std::env::var_os(name));
    if cache_folder.is_none() && policy.cache != PolicyCache::Off {
        tracing::warn!(
            "policies are compiled at each start: no cache folder is known; set [policy] cache_dir"
        );
    }
    HostConfig {
        folder: policy.folder.clone(),
        default: policy.default.clone(),
        limits: policy.limits(),
        cache_folder,
        compiler: Some(PathBuf::from(SELF)),
    }
}

/// One line a person or a script can wait for, with the ports that the system chose.
fn announce(app: &App, clients: &TcpListener, operators: &TcpListener) {
    let address =
        |listener: &TcpListener| listener.local_addr().map_or_else(|_| "?".to_owned(), |at| at.to_string());
    say(&format!(
        "sluice {} serves on {}://{}, admin on http://{}, policy {:?} from {}",
        env!("CARGO_PKG_VERSION"),
        if app.config.server.tls.is_some() { "https" } else { "http" },
        address(clients),
        address(operators),
        app.config.policy.default,
        app.config.policy.folder.display(),
    ));
}
