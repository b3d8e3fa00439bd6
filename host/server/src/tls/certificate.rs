//! Certificates and keys from PEM files.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::TlsError;
use crate::config::Tls;

/// The longest file read: a system's whole set of authorities is about 250 KB.
const FILE_BYTES_AT_MOST: u64 = 4 * 1024 * 1024;

/// A certificate's file and its key's, as they stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pem {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl Pem {
    /// Reads both.
    pub fn read(files: &Tls) -> Result<Self, TlsError> {
        Ok(Self { cert: read(&files.cert_file)?, key: read(&files.key_file)? })
    }

    /// The certificates, their own first, and the key.
    pub fn parsed(
        &self,
        files: &Tls,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let certificates = certificates(&files.cert_file, &self.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|cause| TlsError::NotPem {
            path: files.key_file.clone(),
            wanted: "private key",
            cause: cause.to_string(),
        })?;
        Ok((certificates, key))
    }

    /// The two together, if they belong together.
    pub fn certified(&self, files: &Tls, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
        let (certificates, key) = self.parsed(files)?;
        CertifiedKey::from_der(certificates, key, provider).map_err(|cause| TlsError::NotItsKey {
            key_path: files.key_file.clone(),
            cert_path: files.cert_file.clone(),
            cause,
        })
    }
}

/// A file within its bound.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |cause| TlsError::Unreadable { path: path.to_path_buf(), cause };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_AT_MOST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_AT_MOST {
        return Err(TlsError::TooLong { path: path.to_path_buf(), limit_bytes: FILE_BYTES_AT_MOST });
    }
    Ok(bytes)
}

/// At least one certificate.
pub(super) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let not_pem = |cause: String| TlsError::NotPem { path: path.to_path_buf(), wanted: "certificate", cause };
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|cause| not_pem(cause.to_string()))?;
    if found.is_empty() { Err(not_pem("there is none".to_owned())) } else { Ok(found) }
}
