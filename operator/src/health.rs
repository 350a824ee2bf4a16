//! /healthz: the process turns over. /readyz: caches are synced and the certificate is loaded.
//! Neither asks for the API server, whose absence a restart does not cure.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::certificates::Resolver;

/// The lease loop comes round every three seconds, or after its calls ran into their limits.
const STUCK: Duration = Duration::from_secs(60);

/// What the answers are made of.
#[derive(Clone)]
pub struct Health {
    pub turned: watch::Receiver<Instant>,
    pub synced: watch::Receiver<bool>,
    pub certificate: Arc<Resolver>,
}

/// Why there are no answers.
#[derive(Debug, thiserror::Error)]
#[error("health port {address}: {source}")]
pub struct Error {
    address: SocketAddr,
    source: std::io::Error,
}

/// Serves until `shutdown` resolves.
pub async fn serve(
    address: SocketAddr,
    health: Health,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let failed = |source| Error { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let routes = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(health);
    axum::serve(listener, routes)
        .with_graceful_shutdown(shutdown)
        .await
        .map_err(failed)
}

async fn healthz(State(health): State<Health>) -> (StatusCode, String) {
    let idle = health.turned.borrow().elapsed();
    if idle < STUCK {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        let words = format!("the lease loop has stood still for {} s\n", idle.as_secs());
        (StatusCode::SERVICE_UNAVAILABLE, words)
    }
}

async fn readyz(State(health): State<Health>) -> (StatusCode, &'static str) {
    if !*health.synced.borrow() {
        let words = "caches are not synced: is the API server there, are the CRDs installed?\n";
        return (StatusCode::SERVICE_UNAVAILABLE, words);
    }
    if !health.certificate.loaded() {
        let words = "the webhook's certificate is not loaded yet\n";
        return (StatusCode::SERVICE_UNAVAILABLE, words);
    }
    (StatusCode::OK, "ok\n")
}
