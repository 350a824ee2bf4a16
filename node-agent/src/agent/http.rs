//! The agent's own small web face, plain HTTP: /healthz and /readyz for the kubelet, /metrics for
//! readers whose token the API server accepts.

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

use super::metrics;
use super::proof::Ways;
use super::readers::{Readers, Worth};
use super::report::Board;

/// Whether this agent works on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Another agent holds the node's lock.
    Waiting,
    Working,
}

/// What the answers are made of.
#[derive(Clone)]
pub(crate) struct Face {
    pub(crate) standing: watch::Receiver<Standing>,
    pub(crate) board: Board,
    pub(crate) ways: watch::Receiver<Ways>,
    /// Set once this agent works; nobody reads metrics before.
    pub(crate) readers: Arc<OnceLock<Readers>>,
}

/// Listens and answers for ever.
///
/// # Errors
/// If the port cannot be had.
pub(crate) async fn serve(port: u16, face: Face) -> anyhow::Result<()> {
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
        .with_state(face);
    axum::serve(listener, router).await?;
    Ok(())
}

async fn ready(State(face): State<Face>) -> impl IntoResponse {
    let standing = *face.standing.borrow();
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

async fn scrape(State(face): State<Face>, headers: HeaderMap) -> impl IntoResponse {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    let worth = match face.readers.get() {
        Some(readers) => readers.judge(token).await,
        None => Worth::Unheard,
    };
    let no = |status| {
        (
            status,
            [(header::CONTENT_TYPE, "text/plain")],
            String::new(),
        )
    };
    match worth {
        Worth::Unknown => return no(StatusCode::UNAUTHORIZED),
        Worth::Forbidden => return no(StatusCode::FORBIDDEN),
        Worth::Unheard => return no(StatusCode::SERVICE_UNAVAILABLE),
        Worth::Allowed => {}
    }
    let health = face.board.health();
    let fixes = face.board.fixes().unwrap_or_default();
    let took = face.board.took();
    let devices = face.board.devices();
    let word = metrics::Word {
        took: &took,
        health: health.as_ref(),
        devices: devices.as_ref(),
        fixes: &fixes,
    };
    let text = metrics::render(&face.board.shown(), &face.ways.borrow(), &word);
    match text {
        Ok(text) => (
            StatusCode::OK,
            [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)],
            text,
        ),
        Err(error) => {
            tracing::error!(%error, "the metrics could not be written");
            no(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}
