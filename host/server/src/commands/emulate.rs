//! `sluice emulate`: one engine emulator until it is told to stop.

use std::process::ExitCode;

use sluice_emulator::{EmulateArgs, EmulatorConfig};

use super::{BAD_INPUT, complain, say, stop_signal};
use crate::telemetry;

/// Runs the emulator.
pub fn run(args: EmulateArgs) -> ExitCode {
    telemetry::start_logs(false);
    let config = match EmulatorConfig::try_from(args) {
        Ok(config) => config,
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::from(BAD_INPUT);
        }
    };
    // One thread: an emulator is one engine loop, and demos run several on few cores.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("cannot start the runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let served = runtime.block_on(sluice_emulator::run_until(config, say, stop_signal()));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}
