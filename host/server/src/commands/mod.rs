//! What `sluice` does: one file a command. Exit codes: 0 done, 1 failed, 2 bad configuration or arguments.

pub mod emulate;
pub mod policy;
pub mod policy_new;
pub mod serve;

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{CheckConfig, Cli, Command};
use crate::config;

/// Exit code for a configuration or arguments that cannot be used.
pub const BAD_INPUT: u8 = 2;

/// Runs a command to its end.
pub fn run(cli: Cli) -> ExitCode {
    match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::CheckConfig(args) => check_config(&args),
        Command::Policy(command) => policy::run(command),
        Command::Emulate(args) => emulate::run(args),
    }
}

fn check_config(args: &CheckConfig) -> ExitCode {
    match config::load(&args.config) {
        Ok(config) => {
            let workers: usize = config.pools.iter().map(|pool| pool.workers.len()).sum();
            say(&format!("{}: good: {} pools, {workers} workers", args.config.display(), config.pools.len()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(&error.to_string());
            ExitCode::from(error.exit_code())
        }
    }
}

/// A command's result, on standard output. A reader that went away, as `head` does, is no failure.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// What went wrong, on standard error.
pub(crate) fn complain(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Waits for SIGTERM or SIGINT.
pub(crate) async fn stop_signal() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::warn!("cannot listen for signals: this host stops only when killed");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
