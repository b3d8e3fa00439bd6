//! Asking a running host's admin API.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;

/// How long a command waits for the host.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest answer of the admin API read, in bytes.
const ADMIN_ANSWER_BYTES_AT_MOST: u64 = 8 * 1024 * 1024;

/// What a path answers. The error is for people, with its cure.
pub(super) fn ask<T: DeserializeOwned>(admin: SocketAddr, path: &str) -> Result<T, String> {
    let cure = "is the host running? Its admin address is server.admin_listen; pass another with --admin";
    let body = get(admin, path).map_err(|error| format!("cannot ask {admin}: {error}\n  cure: {cure}"))?;
    serde_json::from_str(&body).map_err(|error| format!("{admin} is no Sluice admin API: {error}"))
}

/// One GET over HTTP/1.0: no keep-alive and no chunks, so the body is what follows the blank line.
fn get(admin: SocketAddr, path: &str) -> Result<String, String> {
    let fetch = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&admin, ADMIN_TIMEOUT)?;
        stream.set_read_timeout(Some(ADMIN_TIMEOUT))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {admin}\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(ADMIN_ANSWER_BYTES_AT_MOST).read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = fetch().map_err(|error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("the answer is no HTTP")?;
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") {
        return Err(format!("{path} answered {status:?}"));
    }
    Ok(body.to_owned())
}
