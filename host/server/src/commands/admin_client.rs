//! Asking a running host's admin listener.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use crate::cli::AdminHost;
use crate::config;

/// How long a command waits for the host.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest answer of the admin API read, in bytes.
const ADMIN_ANSWER_BYTES_AT_MOST: u64 = 8 * 1024 * 1024;

/// One GET.
pub fn get<T: serde::de::DeserializeOwned>(host: &AdminHost, path: &str) -> Result<T, String> {
    read(host, &ask(host, "GET", path)?)
}

/// One POST without a body.
pub fn post<T: serde::de::DeserializeOwned>(host: &AdminHost, path: &str) -> Result<T, String> {
    read(host, &ask(host, "POST", path)?)
}

/// One DELETE.
pub fn delete<T: serde::de::DeserializeOwned>(host: &AdminHost, path: &str) -> Result<T, String> {
    read(host, &ask(host, "DELETE", path)?)
}

fn read<T: serde::de::DeserializeOwned>(host: &AdminHost, body: &str) -> Result<T, String> {
    serde_json::from_str(body).map_err(|error| format!("{} is no Sluice admin API: {error}", host.admin))
}

/// HTTP/1.0: no keep-alive and no chunks, so the body is what follows the blank line.
fn ask(host: &AdminHost, method: &str, path: &str) -> Result<String, String> {
    let admin = &host.admin;
    let token = match &host.token_file {
        Some(file) => {
            let token = config::secret(file).map_err(|what| {
                format!("{} {what}\n  cure: put the admin token on the file's only line", file.display())
            })?;
            format!("Authorization: Bearer {token}\r\n")
        }
        None => String::new(),
    };
    let exchange = || -> std::io::Result<String> {
        let mut stream = admin.connect(ADMIN_TIMEOUT)?;
        stream.set_read_timeout(Some(ADMIN_TIMEOUT))?;
        write!(stream, "{method} {path} HTTP/1.0\r\nHost: {admin}\r\nContent-Length: 0\r\n{token}\r\n")?;
        let mut answer = String::new();
        stream.take(ADMIN_ANSWER_BYTES_AT_MOST).read_to_string(&mut answer)?;
        Ok(answer)
    };
    let cure = "is the host running? Its admin address is server.admin_listen; pass another with --admin";
    let answer = exchange().map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            let within = ADMIN_TIMEOUT.as_secs();
            format!("{admin} gave no answer within {within} s\n  cure: it is busy, stopped, or another program; ask again")
        }
        _ => format!("cannot ask {admin}: {error}\n  cure: {cure}"),
    })?;
    let (head, body) =
        answer.split_once("\r\n\r\n").ok_or_else(|| format!("{admin} answered what is no HTTP"))?;
    let status = head.lines().next().unwrap_or_default();
    if status.contains(" 200 ") {
        return Ok(body.to_owned());
    }
    if status.contains(" 401 ") {
        let cure = "pass the file with its token: --token-file, or SLUICE_ADMIN_TOKEN_FILE";
        return Err(format!("{admin} refuses: {}\n  cure: {cure}", told(body).unwrap_or_default()));
    }
    Err(told(body).unwrap_or_else(|| format!("{admin}: {path} answered {status:?}")))
}

/// The host's own words.
fn told(body: &str) -> Option<String> {
    let body: serde_json::Value = serde_json::from_str(body).ok()?;
    body["error"]["message"].as_str().map(str::to_owned)
}
