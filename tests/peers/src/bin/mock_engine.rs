//! `mock-engine`: canned answers on as many ports as wanted, from one thread.
#![allow(clippy::print_stdout, reason = "it says where it listens")]

use clap::Parser;
use sluice_peers::engine::serve;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// An engine of canned answers: chat and completions, whole and in chunks, prefill legs with a handle. It listens on
/// ports that the system chooses and prints their addresses in one line.
#[derive(Debug, Parser)]
#[command(name = "mock-engine")]
struct Options {
    /// How many ports.
    #[arg(long, default_value_t = 2)]
    ports: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let options = Options::parse();
    sluice_peers::descriptors::raise_limit();
    let (mut serving, mut addresses) = (JoinSet::new(), Vec::new());
    for _ in 0..options.ports {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        addresses.push(listener.local_addr()?.to_string());
        serving.spawn(serve(listener));
    }
    println!("{}", addresses.join(" "));
    serving.join_all().await;
    Ok(())
}
