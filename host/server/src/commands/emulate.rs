//! `sluice emulate`: one engine emulator until it is told to stop.

use std::process::ExitCode;

use sluice_emulator::{EmulateArgs, EmulatorConfig};

use super::{BAD_INPUT, Signals, complain, say};
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
    let served = runtime.block_on(async {
        let signals = Signals::listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
        sluice_emulator::run_until(config, say, signals.stop()).await.map_err(|error| error.to_string())
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            complain(&message);
            ExitCode::FAILURE
        }
    }
}
