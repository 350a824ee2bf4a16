//! The webhook on loopback, and a client that verifies it as an API server does: by CA bundle and name.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use http_server::{Limits, Resolver, server_config};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use mooncake_operator::admission::{Clusters, Devices, Policies, Rooms, router};
use mooncake_operator::args::RdmaClass;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};
use tokio_rustls::TlsConnector;

/// DNS name of the webhook's Service.
pub(crate) const NAME: &str = "mooncake-webhook.mooncake-system.svc";
const LIMITS: Limits = Limits {
    connections: 64,
    body: 3 << 20,
};
/// Limit of every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The TLS configuration of a client.
#[derive(Clone)]
pub(crate) struct Trust(Arc<ClientConfig>);

impl Trust {
    pub(crate) fn of(bundle: &str) -> Self {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(authority.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self(Arc::new(config))
    }
}

/// A running webhook.
pub(crate) struct Server {
    pub(crate) certificate: Arc<Resolver>,
    address: SocketAddr,
    end: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(
        clusters: impl Clusters,
        known: impl Rooms + Devices + Policies + Clone,
    ) -> Self {
        let certificate = Arc::new(Resolver::default());
        let tls = server_config(certificate.clone()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel();
        let image = "localhost/mooncake-gate:dev".to_owned();
        let routes = router(clusters, known, image, RdmaClass::default());
        let running = tokio::spawn(http_server::serve(
            listener,
            Some(tls),
            routes,
            LIMITS,
            async {
                let _ = ended.await;
            },
        ));
        Self {
            certificate,
            address,
            end,
            running,
        }
    }

    /// Stops the webhook.
    pub(crate) async fn end(self) {
        self.end.send(()).unwrap();
        timeout(TIMEOUT, self.running).await.unwrap().unwrap();
    }

    /// Sends one review to `/inject` over a new connection.
    pub(crate) async fn post(
        &self,
        trust: &Trust,
        body: String,
    ) -> Result<(StatusCode, String), Box<dyn Error + Send + Sync>> {
        self.post_to("/inject", trust, body).await
    }

    /// Sends one request over a new connection.
    pub(crate) async fn post_to(
        &self,
        path: &str,
        trust: &Trust,
        body: String,
    ) -> Result<(StatusCode, String), Box<dyn Error + Send + Sync>> {
        timeout(TIMEOUT, self.call(path, trust, body)).await?
    }

    async fn call(
        &self,
        path: &str,
        trust: &Trust,
        body: String,
    ) -> Result<(StatusCode, String), Box<dyn Error + Send + Sync>> {
        let stream = TcpStream::connect(self.address).await?;
        let connector = TlsConnector::from(trust.0.clone());
        let stream = connector
            .connect(ServerName::try_from(NAME)?, stream)
            .await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(connection);
        let request = Request::post(format!("{path}?timeout=5s"))
            .header("host", NAME)
            .header("content-type", "application/json")
            .body(Body::from(body))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        drop(sender);
        driver.await??;
        Ok((status, String::from_utf8(bytes.to_vec())?))
    }
}

/// Waits for a condition.
pub(crate) async fn eventually(condition: impl Fn() -> bool) {
    let mut ticks = interval(Duration::from_millis(5));
    let holds = async {
        while !condition() {
            ticks.tick().await;
        }
    };
    timeout(TIMEOUT, holds)
        .await
        .expect("the condition did not become true");
}
