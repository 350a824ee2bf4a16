//! A gRPC client for the Unix sockets of the kubelet and the container runtime: unary calls, one at a time. The caller
//! sets the deadline.

use std::io;
use std::path::Path;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;
use tower_service::Service;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("connecting: {}", .0.kind())]
    Connect(io::Error),
    #[error("speaking HTTP/2: {0}")]
    Http(#[from] hyper::Error),
    #[error("{}", .0.message())]
    Refused(#[from] tonic::Status),
}

/// A connection; dropping it closes it.
pub(crate) struct Connection {
    grpc: Grpc<WithAuthority>,
    _task: JoinSet<hyper::Result<()>>,
}

impl Connection {
    /// Connects to the socket at this path.
    ///
    /// # Errors
    /// [`CallError::Connect`] if no process listens there, [`CallError::Http`] if the HTTP/2 handshake fails.
    pub(crate) async fn open(socket: &Path) -> Result<Self, CallError> {
        let stream = UnixStream::connect(socket)
            .await
            .map_err(CallError::Connect)?;
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let mut task = JoinSet::new();
        task.spawn(connection);
        Ok(Self {
            grpc: Grpc::new(WithAuthority(sender)),
            _task: task,
        })
    }

    /// Calls a method by its path, e.g. `/v1.PodResourcesLister/List`.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the status of the server or of the transport.
    pub(crate) async fn call<Q, R>(
        &mut self,
        method: &'static str,
        message: Q,
    ) -> Result<R, CallError>
    where
        Q: Message + Default + 'static,
        R: Message + Default + 'static,
    {
        self.grpc.ready().await?;
        let path = PathAndQuery::from_static(method);
        let codec = ProstCodec::<Q, R>::default();
        let response = self
            .grpc
            .unary(tonic::Request::new(message), path, codec)
            .await?;
        Ok(response.into_inner())
    }
}

/// Adds a scheme and an authority to requests: HTTP/2 requires them, a Unix socket has none.
struct WithAuthority(SendRequest<Body>);

impl Service<Request<Body>> for WithAuthority {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let uri = Uri::builder()
            .scheme("http")
            .authority("localhost")
            .path_and_query(request.uri().path().to_owned())
            .build();
        if let Ok(uri) = uri {
            *request.uri_mut() = uri;
        }
        self.0.send_request(request).boxed()
    }
}
