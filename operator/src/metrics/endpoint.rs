//! GET /metrics over TLS, for users that the API server authenticates and authorizes.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use crds::MooncakeCluster;
use http_server::{Limits, Readers, Resolver, TlsError, server_config};
use kube::Client;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::Store;

use crate::metrics::Metrics;

/// Readers hold one connection each, and send no body.
const LIMITS: Limits = Limits {
    connections: 64,
    body: 1 << 10,
};

/// Where and with what the metrics are served.
#[derive(Clone, Debug)]
pub struct Settings {
    pub port: u16,
    pub certificate: Arc<Resolver>,
}

/// Why they are not.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on the metrics port {port}: {source}")]
    Listen { port: u16, source: std::io::Error },
    #[error("metrics port: {0}")]
    Tls(#[from] TlsError),
}

struct Shared {
    metrics: Metrics,
    clusters: Store<DeserializeGuard<MooncakeCluster>>,
    readers: Readers,
}

/// Serves until `shutdown` resolves.
pub async fn serve(
    settings: Settings,
    client: Client,
    metrics: Metrics,
    clusters: Store<DeserializeGuard<MooncakeCluster>>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let Settings { port, certificate } = settings;
    let tls = server_config(certificate)?;
    let listener = http_server::listen(port)
        .await
        .map_err(|source| Error::Listen { port, source })?;
    let shared = Arc::new(Shared {
        metrics,
        clusters,
        readers: Readers::new(Some(client)),
    });
    let routes = Router::new()
        .route("/metrics", get(answer))
        .with_state(shared);
    http_server::serve(listener, Some(tls), routes, LIMITS, shutdown).await;
    Ok(())
}

async fn answer(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if let Err(refusal) = shared.readers.check(&headers).await {
        return refusal;
    }
    match shared.metrics.render(&shared.clusters.state()) {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
