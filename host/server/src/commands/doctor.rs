//! `sluice doctor`: the examination on the command line.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;

use super::{admin_client, complain, say, serve};
use crate::admin_address::AddressError;
use crate::cli::{self, AdminHost};
use crate::clock::SystemClock;
use crate::config::{self, Config, ConfigError, Secrets};
use crate::doctor::attached::Told;
use crate::doctor::{self, Doctor};
use crate::upstream::Upstream;

/// Examines, and prints what was found.
pub fn run(args: &cli::Doctor) -> ExitCode {
    let (config, secrets, upstream) = match prepared(args) {
        Ok(prepared) => prepared,
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::from(error.exit_code());
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("cannot start the runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let progress = |text: &str| complain(&format!("doctor: {text}"));
    let clock = SystemClock::shared();
    let told = config.moves_kv().then(|| told(&config));
    let asking = Doctor { config: &config, secrets: &secrets, upstream: &upstream, clock: &clock, told };
    let report = runtime.block_on(doctor::run(&asking, progress));
    let shown = if args.json {
        // Plain data with text keys always is JSON.
        serde_json::to_string_pretty(&report).unwrap_or_default()
    } else {
        report.to_string()
    };
    say(&shown);
    if report.well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the host of this configuration says of its fleet, if it runs.
fn told(config: &Config) -> Result<Told, String> {
    let mut address = config.server.admin_listen;
    if address.ip().is_unspecified() {
        let is_v4 = address.is_ipv4();
        address.set_ip(if is_v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    let admin = address.to_string().parse().map_err(|error: AddressError| error.to_string())?;
    let host = AdminHost { admin, token_file: config.server.admin_token_file.clone() };
    admin_client::get(&host, "/admin/fleet")
}

/// What `sluice serve` would start with. All engines are asked from one thread.
fn prepared(args: &cli::Doctor) -> Result<(Config, Secrets, Upstream), ConfigError> {
    let config = config::load(&args.config)?;
    let secrets = Secrets::read(&config)?;
    let upstream = serve::upstream(&config, 1)?;
    Ok((config, secrets, upstream))
}
