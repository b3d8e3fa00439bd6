//! `sluice serve`: read the configuration, bind, load the policies, serve, drain.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::{HostConfig, Limits, OpenError, PolicyHost};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{complain, say, stop_signal};
use crate::app::App;
use crate::cli;
use crate::clock::SystemClock;
use crate::config::{self, Config, ConfigError};
use crate::fleet::probe;
use crate::listen::{self, Serving};
use crate::policy_events::PolicyEvents;
use crate::routes;
use crate::telemetry::{self, Telemetry};

/// Between sweeps of expired sessions.
const SESSION_SWEEP: Duration = Duration::from_secs(30);

/// Runs the host until it is told to stop.
pub fn run(args: &cli::Serve) -> ExitCode {
    telemetry::start_logs(args.log_json);
    let config = match config::load(&args.config) {
        Ok(config) => config,
        Err(error) => return refuse(&error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("cannot start the runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(host(config));
    // Probes and idle connections have nothing to finish.
    runtime.shutdown_background();
    code
}

async fn host(config: Config) -> ExitCode {
    let bound = async {
        let clients = bind(&config, config.server.listen, "listen").await?;
        let operators = bind(&config, config.server.admin_listen, "admin_listen").await?;
        Ok::<_, ConfigError>((clients, operators))
    };
    let (clients, operators) = match bound.await {
        Ok(listeners) => listeners,
        Err(error) => return refuse(&error),
    };
    let telemetry = Arc::new(Telemetry::default());
    let policies =
        match PolicyHost::open(host_config(&config), Arc::new(PolicyEvents::new(telemetry.clone()))) {
            Ok(policies) => policies,
            Err(error) => return refuse(&policy_folder(&config, &error)),
        };
    let _watcher = match policies.watch() {
        Ok(watcher) => watcher,
        Err(error) => return refuse(&policy_folder(&config, &error)),
    };
    let app = Arc::new(App::new(config, policies, telemetry, SystemClock::shared()));
    serve(app, clients, operators).await
}

fn refuse(error: &ConfigError) -> ExitCode {
    complain(&error.to_string());
    ExitCode::from(error.exit_code())
}

fn policy_folder(config: &Config, error: &OpenError) -> ConfigError {
    let text = error.to_string();
    let (what, cure) = text.split_once("; ").unwrap_or((&text, "see the message"));
    config::in_use(config, "policy", "folder", what.to_owned(), cure.to_owned())
}

async fn serve(app: Arc<App>, clients: TcpListener, operators: TcpListener) -> ExitCode {
    let _probes = probe::start(&app.fleet, &app.upstream, &app.telemetry);
    let (stop, stopped) = watch::channel(false);
    let serving = Serving {
        header_timeout: Duration::from_millis(app.config.server.header_timeout_ms),
        drain_timeout: Duration::from_millis(app.config.server.drain_timeout_ms),
        stop: stopped,
    };
    announce(&app, &clients, &operators);
    let data = {
        let app = app.clone();
        listen::serve(clients, serving.clone(), move |request| routes::data_plane(app.clone(), request))
    };
    let admin = {
        let app = app.clone();
        listen::serve(operators, serving, move |request| {
            let response = routes::admin(&app, &request);
            async move { response }
        })
    };
    let (_, cut_off, _) = tokio::join!(
        async {
            tokio::select! {
                () = stop_signal() => {}
                () = sweep_sessions(&app) => {}
            }
            app.start_draining();
            tracing::info!(in_flight = app.in_flight(), "draining");
            // The receivers live in the two servers above.
            let _ = stop.send(true);
        },
        data,
        admin,
    );
    if cut_off > 0 {
        tracing::warn!(cut_off, "connections were cut off when server.drain_timeout_ms was over");
    }
    tracing::info!("stopped");
    ExitCode::SUCCESS
}

async fn sweep_sessions(app: &App) {
    loop {
        tokio::time::sleep(SESSION_SWEEP).await;
        app.sessions.sweep(app.clock.wall_ms());
    }
}

async fn bind(config: &Config, address: SocketAddr, key: &str) -> Result<TcpListener, ConfigError> {
    listen::bind(address).await.map_err(|error| {
        let cure = format!("stop what listens there, or set server.{key} to a free port");
        config::in_use(config, "server", key, format!("cannot listen on {address}: {error}"), cure)
    })
}

fn host_config(config: &Config) -> HostConfig {
    let policy = &config.policy;
    HostConfig {
        folder: policy.folder.clone(),
        default: policy.default.clone(),
        limits: Limits {
            cpu_budget_ms: policy.cpu_budget_ms,
            wall_bound_ms: policy.wall_bound_ms,
            memory_bytes: policy.memory_mb as usize * 1024 * 1024,
            ..Limits::default()
        },
    }
}

/// One line a person or a script can wait for, with the ports that the system chose.
fn announce(app: &App, clients: &TcpListener, operators: &TcpListener) {
    let address =
        |listener: &TcpListener| listener.local_addr().map_or_else(|_| "?".to_owned(), |at| at.to_string());
    say(&format!(
        "sluice {} serves on http://{}, admin on http://{}, policy {:?} from {}",
        env!("CARGO_PKG_VERSION"),
        address(clients),
        address(operators),
        app.config.policy.default,
        app.config.policy.folder.display(),
    ));
}
