//! `sluice-demo`: two prefill and two decode engine emulators, a host in front of them, and conversations. While they
//! go on, the policy that decides where each request runs is replaced twice by dropping a file, and one broken file is
//! dropped, too.
#![allow(clippy::print_stdout, reason = "printing is what a demo is for")]

mod keep;
mod report;
mod run;

use std::process::ExitCode;

use clap::Parser;
use sluice_harness::process::stop_signal;

/// See Sluice at work without a GPU, in under a minute.
///
/// Starts two prefill and two decode engine emulators (they speak vLLM's wire and move real KV bytes, but are no
/// engines) and a Sluice host. Conversations of several turns run through it, chats and completions, streamed and
/// whole. Meanwhile the routing policy is swapped twice by dropping a WASM file into the host's policy folder:
/// round-robin, then least-loaded, then adaptive; and a file that broke off half-way is dropped, which must change
/// nothing. Every answer is compared with the right one.
///
/// Ends with 0 only if no request failed, every answer was right, both swaps happened, and the broken file was refused.
#[derive(Debug, Parser)]
#[command(name = "sluice-demo")]
pub struct Options {
    /// Conversations.
    #[arg(long, default_value_t = 120)]
    conversations: usize,
    /// Requests of each conversation; each sends all that was said before.
    #[arg(long, default_value_t = 4)]
    turns: usize,
    /// Conversations at a time.
    #[arg(long, default_value_t = 16)]
    at_once: usize,
    /// Leave everything running afterwards, and say what to try. Ctrl-C ends it.
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    match demo(&options).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(options: &Options) -> anyhow::Result<bool> {
    run::introduce(options);
    let fleet = run::start().await?;
    let seen = tokio::select! {
        seen = run::run(&fleet, options) => seen?,
        () = stop_signal() => anyhow::bail!("stopped before the end"),
    };
    let good = report::print(&seen);
    if options.keep {
        keep::until_interrupted(&fleet).await?;
    }
    Ok(good)
}
