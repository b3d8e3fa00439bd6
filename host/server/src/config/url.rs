//! A worker's address: `http://HOST[:PORT]` or `https://HOST[:PORT]`, nothing more.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use thiserror::Error;

/// Port of an address that names none.
const HTTP_PORT: u16 = 80;
/// The same, over TLS.
const HTTPS_PORT: u16 = 443;
/// Longest name DNS can hold, in bytes.
const MAX_HOST_BYTES: usize = 253;
/// Longest part between dots DNS can hold, in bytes.
const MAX_HOST_PART_BYTES: usize = 63;

/// Where a worker answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkerUrl {
    /// Name or IP address, in lower case; an IPv6 address is without brackets.
    pub host: String,
    /// Never 0.
    pub port: u16,
    /// `host:port` as it stands in a `Host` header; an IPv6 address is in brackets. Equal for equal addresses.
    pub authority: String,
    /// Whether it is reached over TLS.
    pub tls: bool,
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}

/// Why a text is no worker's address. No message repeats what may be a password.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UrlError {
    /// Nothing before `://`.
    #[error("a worker's url starts with http:// or https://")]
    NoScheme {
        /// What it most likely should be.
        likely: Option<String>,
    },
    /// Any other scheme.
    #[error("{scheme:?} is no scheme that workers speak")]
    Scheme {
        /// What stood before `://`.
        scheme: String,
    },
    /// `user:password@`.
    #[error("a worker's url holds no user name or password")]
    Credentials,
    /// Something after host and port.
    #[error("a worker's url ends after host and port")]
    Path {
        /// The url without it.
        likely: String,
    },
    /// No name and no IP address.
    #[error("{host:?} is neither a host name nor an IP address")]
    Host {
        /// What stood there.
        host: String,
    },
    /// 0.0.0.0 or `::`.
    #[error("{host} is an address to listen on, not one to connect to")]
    Unspecified {
        /// What stood there.
        host: String,
    },
    /// An IPv6 address without brackets.
    #[error("an IPv6 address in a url stands in brackets")]
    Brackets {
        /// What it most likely should be.
        likely: Option<String>,
    },
    /// No number, or one out of range.
    #[error("{port:?} is no port")]
    Port {
        /// What stood there.
        port: String,
    },
}

impl UrlError {
    /// What to do about it.
    pub fn cure(&self) -> String {
        match self {
            Self::NoScheme { likely: Some(likely) }
            | Self::Path { likely }
            | Self::Brackets { likely: Some(likely) } => format!("write {likely:?}"),
            Self::NoScheme { likely: None } | Self::Scheme { .. } => {
                "write it as \"http://HOST:PORT\"".to_owned()
            }
            Self::Credentials => {
                "leave out all up to the @; the host sends workers no credentials".to_owned()
            }
            Self::Host { .. } => {
                "write letters, digits, - and . (or an IP address, IPv6 in brackets)".to_owned()
            }
            Self::Unspecified { .. } => {
                "write the address at which this host reaches the worker, such as 127.0.0.1".to_owned()
            }
            Self::Brackets { likely: None } => "write it as \"http://[ADDRESS]:PORT\"".to_owned(),
            Self::Port { .. } => "write the worker's port, a number from 1 to 65535".to_owned(),
        }
    }
}

impl WorkerUrl {
    /// Takes an address apart and brings it to its one spelling.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if text.contains('@') {
            return Err(UrlError::Credentials);
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            let likely = Self::parse_rest(text, false).ok().map(|url| url.to_string());
            return Err(UrlError::NoScheme { likely });
        };
        match scheme.to_ascii_lowercase().as_str() {
            "http" => Self::parse_rest(rest, false),
            "https" => Self::parse_rest(rest, true),
            _ => Err(UrlError::Scheme { scheme: scheme.to_owned() }),
        }
    }

    /// Parses what follows `http://` or `https://`.
    fn parse_rest(rest: &str, tls: bool) -> Result<Self, UrlError> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        let url = Self { tls, ..Self::parse_authority(authority, tls)? };
        match tail {
            "" | "/" => Ok(url),
            _ => Err(UrlError::Path { likely: url.to_string() }),
        }
    }

    fn parse_authority(authority: &str, tls: bool) -> Result<Self, UrlError> {
        let default_port = if tls { HTTPS_PORT } else { HTTP_PORT };
        if let Some(inside) = authority.strip_prefix('[') {
            let bad_host = || UrlError::Host { host: authority.to_owned() };
            let (address, port) = inside.split_once(']').ok_or_else(bad_host)?;
            let address: Ipv6Addr = address.parse().map_err(|_| bad_host())?;
            let port = match port.strip_prefix(':') {
                Some(port) => parse_port(port)?,
                None if port.is_empty() => default_port,
                None => return Err(bad_host()),
            };
            return Self::of_ipv6(address, port);
        }
        match authority.split_once(':') {
            Some((_, rest)) if rest.contains(':') => {
                Err(UrlError::Brackets { likely: bracketed(authority, tls) })
            }
            Some((host, port)) => Self::of_name(host, parse_port(port)?),
            None => Self::of_name(authority, default_port),
        }
    }

    fn of_ipv6(address: Ipv6Addr, port: u16) -> Result<Self, UrlError> {
        if address.is_unspecified() {
            return Err(UrlError::Unspecified { host: format!("[{address}]") });
        }
        Ok(Self { host: address.to_string(), port, authority: format!("[{address}]:{port}"), tls: false })
    }

    fn of_name(host: &str, port: u16) -> Result<Self, UrlError> {
        let host = host.to_ascii_lowercase();
        if host.parse() == Ok(Ipv4Addr::UNSPECIFIED) {
            return Err(UrlError::Unspecified { host });
        }
        if !is_host(&host) {
            return Err(UrlError::Host { host });
        }
        Ok(Self { authority: format!("{host}:{port}"), host, port, tls: false })
    }
}

/// An IPv6 address and a port that were written without brackets, as they should have been written.
fn bracketed(authority: &str, tls: bool) -> Option<String> {
    let (address, port) = authority.rsplit_once(':')?;
    let address: Ipv6Addr = address.parse().ok()?;
    let url = WorkerUrl::of_ipv6(address, parse_port(port).ok()?).ok()?;
    Some(WorkerUrl { tls, ..url }.to_string())
}

fn parse_port(text: &str) -> Result<u16, UrlError> {
    let digits_only = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(port) if port > 0 && digits_only => Ok(port),
        _ => Err(UrlError::Port { port: text.to_owned() }),
    }
}

/// Whether a name could be found by DNS, or is an IPv4 address. A name whose last part is a number is an
/// address to resolvers, so it must be a whole one ("10.1" would silently mean 10.0.0.1).
fn is_host(host: &str) -> bool {
    let part_is_fine = |part: &str| {
        (1..=MAX_HOST_PART_BYTES).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    let last_is_number =
        host.rsplit('.').next().is_some_and(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    if last_is_number {
        return host.parse::<Ipv4Addr>().is_ok();
    }
    host.len() <= MAX_HOST_BYTES && host.split('.').all(part_is_fine)
}
