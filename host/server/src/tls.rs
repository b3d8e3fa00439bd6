//! TLS on both sides: the certificate that clients see, and the authority that workers are believed by. rustls on ring;
//! TLS 1.2 and 1.3; HTTP/1.1 alone is offered.

mod certificate;
mod client;
mod error;
mod renewal;
mod stream;

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};

use crate::config;
pub use client::{ClientConnector, client_connector};
pub use error::TlsError;
pub use renewal::{RENEWAL_INTERVAL, Renewal, Renewed};
pub use stream::MaybeTls;

/// The protocol spoken inside TLS, as ALPN names it.
const HTTP_1_1: &[u8] = b"http/1.1";

/// What the listener needs: the acceptor, and who renews its certificate.
pub struct ServerTls {
    /// Shakes hands with clients.
    pub acceptor: tokio_rustls::TlsAcceptor,
    /// Looks for renewed files.
    pub renewal: Renewal,
}

/// Reads the listener's certificate and key.
pub fn server_acceptor(files: &config::Tls) -> Result<ServerTls, TlsError> {
    let renewal = Renewal::open(files)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_no_client_auth()
        .with_cert_resolver(renewal.certificate());
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(ServerTls { acceptor: Arc::new(config).into(), renewal })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
