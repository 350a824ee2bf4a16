//! The agent's own small web face: /metrics, /healthz and /readyz, plain HTTP.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use crds::reason::Reason;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::metrics;
use super::report::Board;

/// Whether this agent works on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Another agent holds the node's lock.
    Waiting,
    Working,
}

#[derive(Clone)]
struct Shared {
    standing: watch::Receiver<Standing>,
    board: Board,
}

/// Listens and answers for ever.
///
/// # Errors
/// If the port cannot be had.
pub(crate) async fn serve(
    port: u16,
    standing: watch::Receiver<Standing>,
    board: Board,
) -> anyhow::Result<()> {
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
        .with_state(Shared { standing, board });
    axum::serve(listener, router).await?;
    Ok(())
}

async fn ready(State(shared): State<Shared>) -> impl IntoResponse {
    let standing = *shared.standing.borrow();
    match standing {
        Standing::Working => (StatusCode::OK, "working\n".to_owned()),
        Standing::Waiting => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "{}: another agent works on this node; {}\n",
                Reason::AnotherAgentActive,
                Reason::AnotherAgentActive.remedy()
            ),
        ),
    }
}

async fn scrape(State(shared): State<Shared>) -> impl IntoResponse {
    match metrics::render(&shared.board.shown()) {
        Ok(text) => (
            StatusCode::OK,
            [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)],
            text,
        ),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, "text/plain")],
            error.to_string(),
        ),
    }
}
