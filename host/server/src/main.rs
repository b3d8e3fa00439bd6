//! `sluice`: parses the command line and runs one command.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    sluice::commands::run(sluice::cli::Cli::parse())
}
