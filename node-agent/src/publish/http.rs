//! The agent's HTTP server: /healthz and /readyz for the kubelet, /metrics for clients whose token the API server
//! accepts.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use crds::reason::Reason;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::facts::inbox::Snapshots;
use crate::peers::PeerPaths;
use crate::publish::metrics;
use crate::publish::metrics_access::{Access, Readers};
use crate::publish::report::Report;

/// Whether this agent holds the node's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentState {
    /// Another agent holds the node's lock.
    Waiting,
    Active,
}

/// What the handlers read.
#[derive(Clone)]
pub(crate) struct ServerState {
    pub(crate) agent: watch::Receiver<AgentState>,
    pub(crate) report: watch::Receiver<Report>,
    pub(crate) paths: watch::Receiver<PeerPaths>,
    pub(crate) snapshots: Snapshots,
    /// Set when this agent becomes active; /metrics is unavailable before.
    pub(crate) readers: Arc<OnceLock<Readers>>,
}

/// Serves until an error, on all IPv6 and IPv4 addresses, or on IPv4 alone where the node has no IPv6.
///
/// # Errors
/// The port is in use, or accepting connections failed.
pub(crate) async fn serve(port: u16, state: ServerState) -> anyhow::Result<()> {
    let any6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let any4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let listener = match TcpListener::bind(any6).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind(any4)
            .await
            .with_context(|| format!("listening on port {port} for metrics and probes"))?,
    };
    let router = Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(state);
    axum::serve(listener, router).await?;
    Ok(())
}

async fn ready(State(state): State<ServerState>) -> impl IntoResponse {
    let agent = *state.agent.borrow();
    match agent {
        AgentState::Active => (StatusCode::OK, "active\n".to_owned()),
        AgentState::Waiting => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "{}: another agent is active on this node; {}\n",
                Reason::AnotherAgentActive,
                Reason::AnotherAgentActive.remedy()
            ),
        ),
    }
}

async fn scrape(State(state): State<ServerState>, headers: HeaderMap) -> impl IntoResponse {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    let access = match state.readers.get() {
        Some(readers) => readers.check(token).await,
        None => Access::Unavailable,
    };
    let refuse = |status| {
        (
            status,
            [(header::CONTENT_TYPE, "text/plain")],
            String::new(),
        )
    };
    match access {
        Access::Unauthenticated => return refuse(StatusCode::UNAUTHORIZED),
        Access::Forbidden => return refuse(StatusCode::FORBIDDEN),
        Access::Unavailable => return refuse(StatusCode::SERVICE_UNAVAILABLE),
        Access::Allowed => {}
    }
    let report = state.report.borrow().clone();
    let snapshot = state.snapshots.borrow().clone();
    let text = metrics::render(
        &report.pool_metrics(),
        &state.paths.borrow(),
        &report,
        snapshot.as_deref(),
    );
    match text {
        Ok(text) => (
            StatusCode::OK,
            [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)],
            text,
        ),
        Err(error) => {
            tracing::error!(%error, "cannot encode the metrics");
            refuse(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}
