//! The served certificate. It is replaced in memory; existing connections continue.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::identity::Identity;

/// Why TLS cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the stored certificate is no PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("the stored certificate is of no use: {0}")]
    Certificate(#[from] rustls::Error),
}

/// The served identity. Handshakes fail until one is loaded.
#[derive(Default)]
pub struct Resolver {
    served: RwLock<Option<Arc<CertifiedKey>>>,
}

impl Resolver {
    /// Serves this identity from now on.
    ///
    /// # Errors
    /// An invalid certificate or key. The previous identity is still served.
    pub fn load(&self, identity: &Identity) -> Result<(), TlsError> {
        let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
        let certified = CertifiedKey::from_der(chain, key, &provider())?;
        let mut served = self.served.write();
        *served = Some(Arc::new(certified));
        Ok(())
    }

    /// Whether an identity is loaded.
    pub fn loaded(&self) -> bool {
        self.served().is_some()
    }

    fn served(&self) -> Option<Arc<CertifiedKey>> {
        let served = self.served.read();
        served.clone()
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver")
            .field("loaded", &self.loaded())
            .finish()
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.served()
    }
}

/// TLS 1.2 and 1.3, no client certificates, HTTP/1.1.
///
/// # Errors
/// The cryptography provider supports none of these versions.
pub fn server_config(certificate: Arc<Resolver>) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}
