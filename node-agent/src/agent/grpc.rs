//! gRPC to who answers on a Unix socket of the node, kubelet or container runtime: unary calls, one after the other. Who calls
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

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("connecting: {}", .0.kind())]
    Connect(io::Error),
    #[error("speaking HTTP/2: {0}")]
    Http(#[from] hyper::Error),
    #[error("{}", .0.message())]
    Refused(#[from] tonic::Status),
}

/// Ends with this value.
pub(crate) struct Connection {
    grpc: Grpc<Caller>,
    _carried: JoinSet<hyper::Result<()>>,
}

impl Connection {
    /// Connects to the socket at this path.
    ///
    /// # Errors
    /// If nobody listens there, or speaks HTTP/2.
    pub(crate) async fn open(socket: &Path) -> Result<Self, CallError> {
        let stream = UnixStream::connect(socket)
            .await
            .map_err(CallError::Connect)?;
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let mut carried = JoinSet::new();
        carried.spawn(connection);
        Ok(Self {
            grpc: Grpc::new(Caller(sender)),
            _carried: carried,
        })
    }

    /// Calls a method by its path, e.g. `/v1.PodResourcesLister/List`.
    ///
    /// # Errors
    /// What came back instead of an answer.
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
        let answer = self
            .grpc
            .unary(tonic::Request::new(message), path, codec)
            .await?;
        Ok(answer.into_inner())
    }
}

/// On a socket there is no host, and HTTP/2 wants one named.
struct Caller(SendRequest<Body>);

impl Service<Request<Body>> for Caller {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let whole = Uri::builder()
            .scheme("http")
            .authority("localhost")
            .path_and_query(request.uri().path().to_owned())
            .build();
        if let Ok(whole) = whole {
            *request.uri_mut() = whole;
        }
        self.0.send_request(request).boxed()
    }
}
