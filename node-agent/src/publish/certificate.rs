//! The certificate of /metrics: the operator keeps it in a Secret, and replaces it before it ends.

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher::watch_object};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;

use devices::backoff::WatchBackoff;

/// Keys in the Secret: the certificate and its key, PEM.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Why a certificate is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    #[error("the key `{0}` is missing")]
    Missing(&'static str),
    #[error("no PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// Watches the Secret and returns the TLS configuration with the newest valid certificate; None before the first one. A
/// deleted Secret changes nothing.
pub(crate) fn follow(
    secrets: Api<Secret>,
    name: String,
) -> watch::Receiver<Option<Arc<ServerConfig>>> {
    let (publish, configuration) = watch::channel(None);
    tokio::spawn(async move {
        let mut read = watch_object(secrets, &name)
            .backoff(WatchBackoff::default())
            .boxed();
        let mut served = None;
        let mut unavailable = false;
        while let Some(event) = read.next().await {
            let secret = match event {
                Ok(secret) => secret,
                Err(error) => {
                    if !unavailable {
                        tracing::warn!(%error, secret = name, "the certificate of /metrics cannot be watched");
                    }
                    unavailable = true;
                    continue;
                }
            };
            unavailable = false;
            let Some(data) = secret.and_then(|secret| secret.data) else {
                tracing::info!(
                    secret = name,
                    "/metrics is not served before the operator has written its certificate"
                );
                continue;
            };
            let value = |key: &'static str| match data.get(key) {
                Some(ByteString(text)) => Ok(text.clone()),
                None => Err(CertificateError::Missing(key)),
            };
            let pair = value(CERTIFICATE).and_then(|certificate| Ok((certificate, value(KEY)?)));
            if pair.as_ref().ok() == served.as_ref() && served.is_some() {
                continue;
            }
            match pair.and_then(|pair| Ok((server_config(&pair.0, &pair.1)?, pair))) {
                Ok((configuration, pair)) => {
                    tracing::info!(secret = name, "/metrics has a new certificate");
                    served = Some(pair);
                    publish.send_replace(Some(Arc::new(configuration)));
                }
                Err(error) => {
                    tracing::warn!(%error, secret = name, "the certificate of /metrics cannot be used");
                }
            }
        }
    });
    configuration
}

/// TLS 1.2 and 1.3, no client certificates, HTTP/1.1.
pub(super) fn server_config(
    certificate: &[u8],
    key: &[u8],
) -> Result<ServerConfig, CertificateError> {
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let mut configuration = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    configuration.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(configuration)
}
