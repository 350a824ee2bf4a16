//! /healthz: the loop of the Lease runs. /readyz: caches are synced and the certificate is loaded.
//! Neither requires the API server: a restart does not repair its outage.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::sync::watch;

use http_server::{Limits, Resolver};

/// Time without a turn of the loop of the Lease after which the process counts as hung. A turn takes three seconds, or the limits
/// of its calls.
const STUCK: Duration = Duration::from_secs(60);

/// The kubelet holds one connection.
const LIMITS: Limits = Limits {
    connections: 32,
    body: 1 << 10,
};

/// What the answers are made of.
#[derive(Clone)]
pub struct Health {
    pub turned: watch::Receiver<Instant>,
    pub synced: watch::Receiver<bool>,
    pub certificate: Arc<Resolver>,
}

/// Why there are no answers.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on the health port {port}: {source}")]
pub struct Error {
    port: u16,
    source: std::io::Error,
}

/// Serves until `shutdown` resolves.
pub async fn serve(
    port: u16,
    health: Health,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let listener = http_server::listen(port)
        .await
        .map_err(|source| Error { port, source })?;
    let routes = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(health);
    http_server::serve(listener, None, routes, LIMITS, shutdown).await;
    Ok(())
}

async fn healthz(State(health): State<Health>) -> (StatusCode, String) {
    let idle = health.turned.borrow().elapsed();
    if idle < STUCK {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        let body = format!("the lease loop has not run for {} s\n", idle.as_secs());
        (StatusCode::SERVICE_UNAVAILABLE, body)
    }
}

async fn readyz(State(health): State<Health>) -> (StatusCode, &'static str) {
    if !*health.synced.borrow() {
        let body = "caches are not synced: check that the API server is reachable and the CRDs are installed\n";
        return (StatusCode::SERVICE_UNAVAILABLE, body);
    }
    if !health.certificate.loaded() {
        let body = "the webhook's certificate is not loaded yet\n";
        return (StatusCode::SERVICE_UNAVAILABLE, body);
    }
    (StatusCode::OK, "ok\n")
}
