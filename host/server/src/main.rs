//! `sluice`: parses the command line and runs one command.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;

/// Requests allocate buffers of several KiB on one thread and free them there: the system's allocator merges and splits
/// free chunks for each.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    sluice::commands::run(sluice::cli::Cli::parse())
}
