//! vllm-router from the Python package index, round robin, quiet: one line a request would be part of the measurement.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use sluice_harness::{Client, HarnessError, until};
use tokio::process::Command;

use crate::cases::Mode;
use crate::peer::Engines;

/// vllm-router in front of the engines of a mode. Its P/D mode is the one for NIXL.
pub fn command(
    address: SocketAddr,
    metrics: SocketAddr,
    mode: Mode,
    engines: &Engines,
    peers: &Path,
) -> anyhow::Result<Command> {
    let folder = peers.join("venv/bin");
    let binary = folder.join("vllm-router");
    if !binary.is_file() {
        bail!("{} is not there: tests/peers/setup.sh installs it", binary.display());
    }
    let mut command = Command::new(folder.join("python"));
    command.arg(binary);
    command.args(["--host", &address.ip().to_string(), "--port", &address.port().to_string()]);
    command.args(["--prometheus-port", &metrics.port().to_string(), "--log-level", "warning"]);
    command.args(["--policy", "round_robin", "--worker-startup-check-interval", "1"]);
    let urls = |addresses: &[SocketAddr]| addresses.iter().map(|a| format!("http://{a}")).collect::<Vec<_>>();
    match mode {
        Mode::Plain => {
            command.arg("--worker-urls").args(urls(&engines.plain));
        }
        Mode::Split => {
            command.args(["--vllm-pd-disaggregation", "--kv-connector", "nixl"]);
            for (option, addresses) in [("--prefill", &engines.prefill), ("--decode", &engines.decode)] {
                for url in urls(addresses) {
                    command.args([option, &url]);
                }
            }
        }
    }
    Ok(command)
}

/// Waits until it says that it is healthy, before anything is asked of it.
pub async fn until_healthy(address: SocketAddr, within: Duration) -> Result<(), HarnessError> {
    let client = Client::new(&format!("http://{address}"));
    until("vllm-router to be healthy", within, async || {
        let answer = client.get("/health").await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await
}
