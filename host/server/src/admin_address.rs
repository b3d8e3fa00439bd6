//! Where a running host's admin API is asked: `HOST:PORT`, with or without the `http://` that it is announced with.

use std::fmt;
use std::io::{Error, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::config::{UrlError, WorkerUrl};

/// Addresses of one name that are tried: a name for this machine has two, one of each family.
const ADDRESSES_TRIED: usize = 4;

/// A host, by name or IP address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminAddress {
    host: String,
    port: u16,
    /// As it stands in a `Host` header.
    authority: String,
}

/// Why a text is no admin address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    /// `https://`.
    #[error("the admin API is plain HTTP: write HOST:PORT or http://HOST:PORT")]
    Tls,
    /// Another scheme.
    #[error("{0:?} is no scheme of the admin API: write HOST:PORT or http://HOST:PORT")]
    Scheme(String),
    /// Something after host and port.
    #[error("an admin address ends after HOST:PORT: write {0:?}")]
    Path(String),
    /// `user:password@`.
    #[error("an admin address holds no user name: write HOST:PORT, and the token's file with --token-file")]
    Credentials,
    /// No port.
    #[error("the port is missing: write {0}:PORT, as server.admin_listen has it (8001 by default)")]
    NoPort(String),
    /// What is before or after the colon is not what it should be.
    #[error("{0}: write HOST:PORT, as server.admin_listen has it (IPv6 as [ADDRESS]:PORT)")]
    NoAddress(UrlError),
}

impl FromStr for AdminAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest = match text.split_once("://") {
            None => text,
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => return Err(AddressError::Tls),
            Some((scheme, _)) => return Err(AddressError::Scheme(scheme.to_owned())),
        };
        if rest.contains('@') {
            return Err(AddressError::Credentials);
        }
        let address = rest.trim_end_matches('/');
        if let Some(end) = address.find(['/', '?', '#']) {
            return Err(AddressError::Path(address[..end].to_owned()));
        }
        let WorkerUrl { host, port, authority, .. } =
            WorkerUrl::parse(&format!("http://{address}")).map_err(AddressError::NoAddress)?;
        // A host's admin API listens where no url's default port leads.
        let after_host = address.rsplit(']').next().unwrap_or(address);
        if !after_host.contains(':') {
            return Err(AddressError::NoPort(address.to_owned()));
        }
        Ok(Self { host, port, authority })
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.authority)
    }
}

impl AdminAddress {
    /// Connects to the first of its addresses that takes a connection within this time.
    pub fn connect(&self, within: Duration) -> Result<TcpStream, Error> {
        let found = (self.host.as_str(), self.port).to_socket_addrs()?;
        let mut failed = Error::new(ErrorKind::NotFound, "the name has no address");
        for address in found.take(ADDRESSES_TRIED) {
            match TcpStream::connect_timeout(&address, within) {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports() {
        for (text, expected) in [
            ("127.0.0.1:8001", Ok("127.0.0.1:8001")),
            ("http://127.0.0.1:8001/", Ok("127.0.0.1:8001")),
            ("localhost:8001", Ok("localhost:8001")),
            ("HTTP://Router-1.example:80", Ok("router-1.example:80")),
            ("[::1]:8001", Ok("[::1]:8001")),
            ("https://127.0.0.1:8001", Err("plain HTTP")),
            ("ftp://localhost:1", Err("\"ftp\" is no scheme")),
            ("localhost", Err("write localhost:PORT")),
            ("http://localhost", Err("write localhost:PORT")),
            ("[::1]", Err("write [::1]:PORT")),
            ("::1:8001", Err("stands in brackets")),
            ("localhost:", Err("\"\" is no port")),
            ("localhost:99999", Err("\"99999\" is no port")),
            ("localhost:port", Err("\"port\" is no port")),
            (":8001", Err("\"\" is neither a host name nor an IP address")),
            ("", Err("neither a host name")),
            ("a b:1", Err("neither a host name")),
            ("0.0.0.0:8001", Err("is an address to listen on")),
            ("localhost:8001/admin", Err("write \"localhost:8001\"")),
            ("me:secret@localhost:8001", Err("--token-file")),
        ] {
            let parsed: Result<AdminAddress, _> = text.parse();
            match expected {
                Ok(address) => assert_eq!(parsed.map(|parsed| parsed.to_string()), Ok(address.to_owned())),
                Err(part) => {
                    let told = parsed.map_err(|error| error.to_string()).expect_err(text);
                    assert!(told.contains(part) && !told.contains("secret"), "{text}: {told}");
                }
            }
        }
    }

    /// A name may have addresses where nobody listens, before the one where the host does.
    #[test]
    fn all_addresses_of_a_name_are_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let address: AdminAddress = format!("localhost:{port}").parse().expect("an address");
        let stream = address.connect(Duration::from_secs(5)).expect("a connection");
        assert_eq!(stream.peer_addr().expect("an address").port(), port);
    }
}
