//! `sluice doctor`: the examination on the command line.

use std::process::ExitCode;

use super::{complain, say, serve};
use crate::cli;
use crate::clock::SystemClock;
use crate::config::{self, Config, ConfigError, Secrets};
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
    let asking = Doctor { config: &config, secrets: &secrets, upstream: &upstream, clock: &clock };
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

/// What `sluice serve` would start with. All engines are asked from one thread.
fn prepared(args: &cli::Doctor) -> Result<(Config, Secrets, Upstream), ConfigError> {
    let config = config::load(&args.config)?;
    let secrets = Secrets::read(&config)?;
    let upstream = serve::upstream(&config, 1)?;
    Ok((config, secrets, upstream))
}
