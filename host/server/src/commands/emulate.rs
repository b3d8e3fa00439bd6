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
    runtime.block_on(async {
        let emulator = match sluice_emulator::start(config).await {
            Ok(emulator) => emulator,
            Err(error) => {
                complain(&error.to_string());
                return ExitCode::from(BAD_INPUT);
            }
        };
        say(&format!("sluice emulator serves on http://{}, KV on {}", emulator.http_addr(), emulator.kv_addr()));
        stop_signal().await;
        emulator.stop().await;
        ExitCode::SUCCESS
    })
}
