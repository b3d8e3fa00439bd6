//! nginx as a reverse proxy for streams: round robin, kept connections, nothing held back, nothing logged.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, bail};
use tokio::process::Command;

use crate::peer::Engines;

/// Idle connections to engines that each nginx worker keeps: more than clients at a time.
const KEPT_CONNECTIONS: usize = 64;

/// nginx in front of the plain engines, its files in `folder`.
pub fn command(
    address: SocketAddr,
    engines: &Engines,
    peers: &Path,
    folder: &Path,
) -> anyhow::Result<Command> {
    let binary = peers.join("nginx/usr/sbin/nginx");
    if !binary.is_file() {
        bail!("{} is not there: tests/peers/setup.sh installs it", binary.display());
    }
    let config = folder.join("nginx.conf");
    std::fs::write(&config, configuration(address, &engines.plain, folder))
        .with_context(|| format!("cannot write {}", config.display()))?;
    let mut command = Command::new(binary);
    command.arg("-p").arg(folder).arg("-c").arg(config).arg("-e").arg(folder.join("error.log"));
    Ok(command)
}

fn configuration(address: SocketAddr, engines: &[SocketAddr], folder: &Path) -> String {
    let folder = folder.display();
    let mut servers = String::new();
    for engine in engines {
        let _ = writeln!(servers, "    server {engine};");
    }
    format!(
        "daemon off;
worker_processes auto;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/bodies;
  proxy_temp_path {folder}/proxied;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  upstream engines {{
{servers}    keepalive {KEPT_CONNECTIONS};
    keepalive_requests 1000000000;
  }}
  server {{
    listen {address};
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_buffering off;
    }}
  }}
}}
"
    )
}
