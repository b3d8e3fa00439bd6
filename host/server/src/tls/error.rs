//! Why a certificate cannot be used.

use std::path::PathBuf;

/// Each names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No such file, or no right to read it.
    #[error("{} cannot be read: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's words.
        cause: std::io::Error,
    },
    /// The file is far longer than certificates are.
    #[error("{} is longer than {limit_bytes} bytes: is it a PEM file of certificates?", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The bound.
        limit_bytes: u64,
    },
    /// Not what it should hold.
    #[error("{} holds no {wanted} in PEM: {cause}", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// What should be in it.
        wanted: &'static str,
        /// What is wrong.
        cause: String,
    },
    /// The key is of another certificate, or of a kind that is not known.
    #[error("{} is not the key of {}: {cause}", key_path.display(), cert_path.display())]
    NotItsKey {
        /// The key.
        key_path: PathBuf,
        /// The certificate.
        cert_path: PathBuf,
        /// What is wrong.
        cause: rustls::Error,
    },
    /// An authority's certificate cannot be used.
    #[error("{} holds no authority that can be used: {cause}", path.display())]
    NoAuthority {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// The library refuses.
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
}

impl TlsError {
    /// The file at fault, if it is one.
    pub fn path(&self) -> Option<&std::path::Path> {
        match self {
            Self::Unreadable { path, .. }
            | Self::TooLong { path, .. }
            | Self::NotPem { path, .. }
            | Self::NoAuthority { path, .. }
            | Self::NotItsKey { key_path: path, .. } => Some(path),
            Self::Setup(_) => None,
        }
    }

    /// What to do about it.
    pub fn cure(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "correct the path, or let this process read the file",
            Self::TooLong { .. } | Self::NotPem { .. } | Self::NoAuthority { .. } => {
                "give a PEM file: text with BEGIN and END lines"
            }
            Self::NotItsKey { .. } => {
                "give the certificate (its own first, then those between) and the key it was made with"
            }
            Self::Setup(_) => "see what the message says",
        }
    }
}
