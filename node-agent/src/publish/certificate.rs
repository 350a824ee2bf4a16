//! The certificate of /metrics: the operator keeps it in a Secret, and replaces it before it ends.

use std::sync::Arc;

use futures::StreamExt;
use http_server::Resolver;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher::watch_object};

use devices::backoff::WatchBackoff;

/// Keys in the Secret: the certificate and its key, PEM.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Watches the Secret and serves its certificate from now on. One that is deleted or invalid changes nothing.
pub(crate) async fn follow(secrets: Api<Secret>, name: String, served: Arc<Resolver>) {
    let mut read = watch_object(secrets, &name)
        .backoff(WatchBackoff::default())
        .boxed();
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
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        let (Some(ByteString(certificate)), Some(ByteString(key))) =
            (data.get(CERTIFICATE), data.get(KEY))
        else {
            let message = "/metrics is not served before the operator has written its certificate";
            tracing::info!(secret = name, message);
            continue;
        };
        match served.load(certificate, key) {
            Ok(()) => tracing::info!(secret = name, "/metrics is served with this certificate"),
            Err(error) => {
                tracing::warn!(%error, secret = name, "the certificate of /metrics cannot be used");
            }
        }
    }
}
