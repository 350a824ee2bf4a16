//! Requests to the admin port of a master, through a connection that the API server and the kubelet forward into the master's pod. The
//! cluster's network policies and admission stay as they are.

use std::pin::Pin;

use crds::names::MASTER_ADMIN_PORT;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::Portforwarder;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

/// Largest answer that is read, in bytes.
const LARGEST: usize = 64 << 20;

/// Why a master could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot forward its port {MASTER_ADMIN_PORT}: {0}")]
    Forward(kube::Error),
    #[error("port {MASTER_ADMIN_PORT} of the pod does not answer: {0}")]
    Closed(String),
    #[error("{path}: {source}")]
    Exchange { path: String, source: hyper::Error },
    #[error("{path}: {source}")]
    Path {
        path: String,
        source: hyper::http::Error,
    },
    #[error("{path}: the answer is longer than {} MiB or was cut off: {cause}", LARGEST >> 20)]
    Body { path: String, cause: String },
    #[error("{path}: status {status}{message}")]
    Status {
        path: String,
        status: StatusCode,
        message: String,
    },
    #[error("{path}: the answer cannot be decoded: {source}")]
    Decode {
        path: String,
        source: serde_json::Error,
    },
    #[error("/metrics: {line:?} is not a count: {source}")]
    Metric {
        line: String,
        source: std::num::ParseIntError,
    },
}

impl Error {
    /// True if RBAC does not allow to forward the port.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Forward(kube::Error::Api(status)) if status.code == 403)
    }

    /// True if the master does not have the path.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { status, .. } if *status == StatusCode::NOT_FOUND)
    }
}

#[derive(Deserialize)]
struct Refusal {
    error_message: String,
}

/// A connection to the admin port of a master.
pub(crate) struct AdminPort {
    sender: SendRequest<Empty<Bytes>>,
    /// Moves the bytes.
    driver: JoinHandle<()>,
    forwarder: Option<Portforwarder>,
    /// What the kubelet reports beside the stream, which only ends.
    failed: Option<BoxFuture>,
}

type BoxFuture = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

impl Drop for AdminPort {
    fn drop(&mut self) {
        self.driver.abort();
        if let Some(forwarder) = &self.forwarder {
            forwarder.abort();
        }
    }
}

impl AdminPort {
    /// Forwards the admin port of a pod.
    ///
    /// # Errors
    /// The port cannot be forwarded.
    pub(crate) async fn open(pods: &Api<Pod>, master: &str) -> Result<Self, Error> {
        let mut forwarder = pods
            .portforward(master, &[MASTER_ADMIN_PORT])
            .await
            .map_err(Error::Forward)?;
        let failed = forwarder.take_error(MASTER_ADMIN_PORT);
        let Some(stream) = forwarder.take_stream(MASTER_ADMIN_PORT) else {
            return Err(Error::Closed("no stream was opened".to_owned()));
        };
        let mut port = Self::over(stream).await?;
        port.forwarder = Some(forwarder);
        port.failed = failed.map(|failed| Box::pin(failed) as BoxFuture);
        Ok(port)
    }

    /// Uses a connected stream.
    ///
    /// # Errors
    /// `Exchange`.
    pub(crate) async fn over<S>(stream: S) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let begun = handshake(TokioIo::new(stream)).await;
        let (sender, connection) = begun.map_err(|source| Error::Exchange {
            path: "/".to_owned(),
            source,
        })?;
        // The sender gets its failures.
        let driver = tokio::spawn(async { drop(connection.await) });
        Ok(Self {
            sender,
            driver,
            forwarder: None,
            failed: None,
        })
    }

    /// Requests a path.
    ///
    /// # Errors
    /// The port is closed, as that of a master that waits to be elected; and every answer but a success.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Bytes, Error> {
        let outcome = get(&mut self.sender, path).await;
        if let Err(Error::Exchange { .. }) = &outcome
            && let Some(failed) = self.failed.take()
            && let Some(cause) = failed.await
        {
            return Err(Error::Closed(cause.trim().to_owned()));
        }
        outcome
    }
}

async fn get(sender: &mut SendRequest<Empty<Bytes>>, path: &str) -> Result<Bytes, Error> {
    // Errors name the path without its query, which may be long.
    let name = path.split('?').next().unwrap_or_default();
    let failed = |source| Error::Exchange {
        path: name.to_owned(),
        source,
    };
    sender.ready().await.map_err(failed)?;
    let request = Request::get(path)
        .header("host", "localhost")
        .body(Empty::new())
        .map_err(|source| Error::Path {
            path: name.to_owned(),
            source,
        })?;
    let answer = sender.send_request(request).await.map_err(failed)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LARGEST).collect().await;
    let body = body.map_err(|cause| Error::Body {
        path: name.to_owned(),
        cause: cause.to_string(),
    })?;
    let body = body.to_bytes();
    if status.is_success() {
        return Ok(body);
    }
    let refusal = serde_json::from_slice::<Refusal>(&body);
    Err(Error::Status {
        path: name.to_owned(),
        status,
        message: refusal.map_or_else(|_| String::new(), |one| format!(": {}", one.error_message)),
    })
}

/// Decodes the answer of a path.
///
/// # Errors
/// `Decode`.
pub(crate) fn decode<'a, T: Deserialize<'a>>(path: &str, body: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|source| Error::Decode {
        path: path.split('?').next().unwrap_or_default().to_owned(),
        source,
    })
}
