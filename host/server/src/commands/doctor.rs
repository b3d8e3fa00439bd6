//! `sluice doctor`: the examination on the command line.

use std::process::ExitCode;

use super::{complain, say};
use crate::cli::Doctor;
use crate::clock::SystemClock;
use crate::{config, doctor};

/// Examines, and prints what was found.
pub fn run(args: &Doctor) -> ExitCode {
    let config = match config::load(&args.config) {
        Ok(config) => config,
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
    let report = runtime.block_on(doctor::run(&config, &SystemClock::shared(), progress));
    let shown = if args.json {
        // Plain data with text keys always is JSON.
        serde_json::to_string_pretty(&report).unwrap_or_default()
    } else {
        report.to_string()
    };
    say(&shown);
    if report.well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
