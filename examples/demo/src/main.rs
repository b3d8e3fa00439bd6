//! `sluice-demo`: prefill and decode engine emulators, a host in front of them, and conversations, in two parts. First
//! engines move KV, and the policy that decides where each request runs is replaced in mid-run by dropping files. Then the
//! host moves KV: by pull, by push, and back from decode for the next turn.
#![allow(clippy::print_stdout, reason = "printing is what a demo is for")]

mod bars;
mod engine_managed;
mod host_managed;
mod keep;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use sluice_harness::process::stop_signal;

/// The file that is dropped over, in the policy folder.
const POLICY: &str = "active";

/// See Sluice at work without a GPU, in under two minutes.
///
/// Starts two prefill and two decode engine emulators (they speak vLLM's wire and move real KV bytes, but are no
/// engines) and a Sluice host. Conversations of several turns run through it, chats and completions, streamed and
/// whole, and every answer is compared with the right one.
///
/// In the first part engines move KV. Meanwhile the routing policy is swapped twice by dropping a WASM file into the
/// host's policy folder: round-robin, then least-loaded, then adaptive; and a file that broke off half-way is dropped,
/// which must change nothing. In the second part the host moves KV: the same load by pull, by push, and by push with
/// turns kept at the decode engines for the next one, each by a word in the policy's settings, while the host runs.
///
/// Ends with 0 only if no request failed, every answer was right, all swaps happened, the broken file was refused, and KV
/// moved in every way that was asked for.
#[derive(Debug, Parser)]
#[command(name = "sluice-demo")]
struct Options {
    /// Conversations of the first part.
    #[arg(long, default_value_t = 120)]
    conversations: usize,
    /// Requests of each conversation; each sends all that was said before.
    #[arg(long, default_value_t = 4)]
    turns: usize,
    /// Conversations at a time, in the first part.
    #[arg(long, default_value_t = 16)]
    at_once: usize,
    /// Only one of the parts.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Leave the last part running afterwards, and say what to try. Ctrl-C ends it.
    #[arg(long)]
    keep: bool,
}

/// Who moves KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The engines.
    EngineManaged,
    /// The host.
    HostManaged,
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
    let parts = [Part::EngineManaged, Part::HostManaged];
    let parts = parts.into_iter().filter(|part| options.only.is_none_or(|only| only == *part));
    let mut good = true;
    let mut last = None;
    for part in parts {
        // One fleet at a time: each takes memory, and the processors.
        drop(last.take());
        let shown = async {
            match part {
                Part::EngineManaged => engine_managed::show(options).await,
                Part::HostManaged => host_managed::show(options).await,
            }
        };
        let (fleet, was_good) = tokio::select! {
            shown = shown => shown?,
            () = stop_signal() => anyhow::bail!("stopped before the end"),
        };
        good &= was_good;
        last = Some((fleet, part));
    }
    if let Some((fleet, part)) = last.filter(|_| options.keep) {
        keep::until_interrupted(&fleet, part).await?;
    }
    Ok(good)
}
