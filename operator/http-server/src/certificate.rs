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

/// Why TLS cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the certificate or its key is no PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("the certificate is of no use: {0}")]
    Certificate(#[from] rustls::Error),
}

/// The served certificate. Handshakes fail until one is loaded.
#[derive(Default)]
pub struct Resolver {
    served: RwLock<Option<Arc<CertifiedKey>>>,
}

impl Resolver {
    /// Serves this certificate with its key from now on; both are PEM.
    ///
    /// # Errors
    /// An invalid certificate or key, or the key of another certificate. The previous certificate is still served.
    pub fn load(&self, certificate: &[u8], key: &[u8]) -> Result<(), TlsError> {
        let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(key)?;
        let certified = CertifiedKey::from_der(chain, key, &provider())?;
        let mut served = self.served.write();
        *served = Some(Arc::new(certified));
        Ok(())
    }

    /// Whether a certificate is loaded.
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

#[cfg(test)]
mod tests {
    use rcgen::generate_simple_self_signed;

    use super::*;

    #[test]
    fn a_key_of_another_certificate_is_refused_and_the_former_certificate_is_still_served() {
        let issue = || generate_simple_self_signed(["a.team.svc".to_owned()]).unwrap();
        let (one, other) = (issue(), issue());
        let [one_key, other_key] = [&one, &other].map(|pair| pair.signing_key.serialize_pem());
        let certificate = one.cert.pem();
        let served = Resolver::default();
        let load =
            |certificate: &str, key: &str| served.load(certificate.as_bytes(), key.as_bytes());
        load(&certificate, &other_key).unwrap_err();
        load("", &one_key).unwrap_err();
        assert!(!served.loaded());
        load(&certificate, &one_key).unwrap();
        load(&certificate, "no key").unwrap_err();
        assert!(served.loaded());
    }
}
