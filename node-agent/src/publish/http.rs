//! The agent's HTTP servers: /healthz and /readyz for the kubelet, and over TLS /metrics for clients whose token the API
//! server accepts.

use std::future::pending;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use crds::reason::Reason;
use http_server::{Limits, Readers, Resolver};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::facts::inbox::Snapshots;
use crate::peers::PeerPaths;
use crate::publish::metrics;
use crate::publish::report::Report;

/// Whether this agent holds the node's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentState {
    /// Another agent holds the node's lock.
    Waiting,
    Active,
}

/// Readers of /metrics hold one connection each, the kubelet one to the other port; none sends a body.
const LIMITS: Limits = Limits {
    connections: 64,
    body: 1 << 10,
};

/// What /metrics reads.
#[derive(Clone)]
pub(crate) struct Observed {
    pub(crate) report: watch::Receiver<Report>,
    pub(crate) paths: watch::Receiver<PeerPaths>,
    pub(crate) snapshots: Snapshots,
    pub(crate) readers: Arc<Readers>,
}

/// Serves /healthz and /readyz until an error.
///
/// # Errors
/// The port is in use.
pub(crate) async fn serve_health(
    port: u16,
    agent: watch::Receiver<AgentState>,
) -> anyhow::Result<()> {
    let router = Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .with_state(agent);
    http_server::serve(listen(port).await?, None, router, LIMITS, pending()).await;
    Ok(())
}

/// Serves /metrics until an error: over TLS with this certificate, without which handshakes fail, or in plain text if there
/// is no source of certificates.
///
/// # Errors
/// The port is in use, or the TLS configuration is invalid.
pub(crate) async fn serve_metrics(
    port: u16,
    observed: Observed,
    certificate: Option<Arc<Resolver>>,
) -> anyhow::Result<()> {
    let listener = listen(port).await?;
    let router = Router::new()
        .route("/metrics", get(scrape))
        .with_state(observed);
    let tls = certificate.map(http_server::server_config).transpose()?;
    http_server::serve(listener, tls, router, LIMITS, pending()).await;
    Ok(())
}

async fn listen(port: u16) -> anyhow::Result<TcpListener> {
    http_server::listen(port)
        .await
        .with_context(|| format!("listening on port {port} for metrics or probes"))
}

async fn ready(State(agent): State<watch::Receiver<AgentState>>) -> impl IntoResponse {
    let agent = *agent.borrow();
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

async fn scrape(State(state): State<Observed>, headers: HeaderMap) -> Response {
    if let Err(refusal) = state.readers.check(&headers).await {
        return refusal;
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
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot encode the metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::publish::report::Reporter;

    const NAME: &str = "mooncake-agent.mooncake-system.svc";
    const SOON: Duration = Duration::from_secs(30);
    const REQUEST: &[u8] = b"GET /metrics HTTP/1.0\r\n\r\n";

    fn load(served: &Resolver, key: &CertifiedKey<rcgen::KeyPair>) {
        let [certificate, key] = [key.cert.pem(), key.signing_key.serialize_pem()];
        served.load(certificate.as_bytes(), key.as_bytes()).unwrap();
    }

    /// Reads /metrics over a new connection, as a client that trusts only this certificate.
    async fn get(port: u16, trusted: &CertifiedKey<rcgen::KeyPair>) -> std::io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let name = ServerName::try_from(NAME).unwrap();
        let connector = TlsConnector::from(Arc::new(client));
        let mut stream = connector.connect(name, stream).await?;
        stream.write_all(REQUEST).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    async fn eventually(port: u16, trusted: &CertifiedKey<rcgen::KeyPair>) -> String {
        let answered = async {
            loop {
                match get(port, trusted).await {
                    Ok(answer) => return answer,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let answered = tokio::time::timeout(SOON, answered).await;
        answered.expect("the metrics were not served with this certificate in time")
    }

    #[tokio::test]
    async fn metrics_are_served_over_tls_only_and_with_the_newest_certificate() {
        let reporter = Reporter::default();
        let observed = Observed {
            report: reporter.subscribe(),
            paths: watch::channel(PeerPaths::new()).1,
            snapshots: watch::channel(None).1,
            readers: Arc::new(Readers::new(None)),
        };
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let served = Arc::new(Resolver::default());
        tokio::spawn(serve_metrics(port, observed, Some(Arc::clone(&served))));
        let issue = || generate_simple_self_signed([NAME.to_owned()]).unwrap();
        let (first, second) = (issue(), issue());
        load(&served, &first);
        let answer = eventually(port, &first).await;
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
        assert!(answer.contains("# EOF"), "{answer}");

        let mut plain = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        plain.write_all(REQUEST).await.unwrap();
        let mut answer = Vec::new();
        // A TLS alert, or a reset.
        plain.read_to_end(&mut answer).await.ok();
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");

        load(&served, &second);
        get(port, &second).await.unwrap();
        assert!(get(port, &first).await.is_err(), "the former certificate");
    }
}
