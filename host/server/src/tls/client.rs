//! The client's side: towards workers whose url is https.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::certificate::{self, Pem};
use super::{HTTP_1_1, MaybeTls, TlsError, provider};
use crate::config::{UpstreamTls, WorkerUrl};

/// Shakes hands with workers. Clones share its sessions.
#[derive(Clone)]
pub struct ClientConnector(TlsConnector);

impl std::fmt::Debug for ClientConnector {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ClientConnector")
    }
}

/// Reads the authority and this host's own certificate; `None` when no authority is configured, and so no worker is
/// reached over TLS. The files are read at the start alone.
pub fn client_connector(upstream: &UpstreamTls) -> Result<Option<ClientConnector>, TlsError> {
    let Some(path) = &upstream.ca_file else { return Ok(None) };
    let mut roots = RootCertStore::empty();
    for certificate in certificate::certificates(path, &certificate::read(path)?)? {
        let refused =
            |cause: rustls::Error| TlsError::NoAuthority { path: path.clone(), cause: cause.to_string() };
        roots.add(certificate).map_err(refused)?;
    }
    let provider = provider();
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|cause| TlsError::NoAuthority { path: path.clone(), cause: cause.to_string() })?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_webpki_verifier(verifier);
    let mut config = match &upstream.client {
        None => config.with_no_client_auth(),
        Some(files) => {
            let (certificates, key) = Pem::read(files)?.parsed(files)?;
            config.with_client_auth_cert(certificates, key).map_err(|cause| TlsError::NotItsKey {
                key_path: files.key_file.clone(),
                cert_path: files.cert_file.clone(),
                cause,
            })?
        }
    };
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(Some(ClientConnector(Arc::new(config).into())))
}

impl ClientConnector {
    /// Shakes hands over a fresh connection. The worker's certificate must be for the host in its url.
    pub async fn connect(&self, worker: &WorkerUrl, stream: TcpStream) -> std::io::Result<MaybeTls> {
        let name = ServerName::try_from(worker.host.clone()).map_err(std::io::Error::other)?;
        let stream = self.0.connect(name, stream).await?;
        Ok(MaybeTls::Tls(Box::new(stream)))
    }
}
