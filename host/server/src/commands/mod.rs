//! What `sluice` does: one file a command. Exit codes: 0 done, 1 failed, 2 bad configuration or arguments.

pub mod admin_client;
pub mod check_config;
mod descriptors;
pub mod doctor;
pub mod emulate;
pub mod fleet;
mod fleet_transfer;
pub mod policy;
pub mod policy_bindings;
pub mod policy_new;
pub mod policy_show;
pub mod serve;
pub mod sessions;
pub mod tenants;

use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::{Cli, Command};

/// Exit code for a configuration or arguments that cannot be used.
pub const BAD_INPUT: u8 = 2;

/// Runs a command to its end.
pub fn run(cli: Cli) -> ExitCode {
    match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::CheckConfig(args) => check_config::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Drain(args) => fleet::drain(&args),
        Command::Policy(command) => policy::run(command),
        Command::Sessions(command) => sessions::run(command),
        Command::Tenants(args) => tenants::list(&args.host),
        Command::TenantKey => tenants::key(),
        Command::Emulate(args) => emulate::run(args),
        Command::CompilePolicy { niceness, parent } => {
            ExitCode::from(sluice_policy::serve_compilation(niceness, parent))
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

/// SIGTERM and SIGINT, listened for from the moment this is made: one that comes earlier ends the process at once.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Listens from now on. Needs a runtime.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for either.
    pub async fn stop(mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                // To other servers it means "reload"; it must not end this one.
                _ = self.hangup.recv() => {
                    tracing::warn!("SIGHUP does nothing: policies reload by themselves, the configuration is read at start");
                }
            }
        }
    }
}
