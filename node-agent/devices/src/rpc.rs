//! gRPC server on a Unix socket with what the kubelet uses: unary and server-streaming calls over plain HTTP/2.

use std::convert::Infallible;
use std::fs;
use std::future::{Ready, ready};
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, Map};
use futures::{FutureExt as _, Stream};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic_prost::ProstCodec;

/// How long running calls may take after the end.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the calls of a socket.
pub trait Service: Send + Sync + 'static {
    /// Answers one call; the path names the method.
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Response<Body>>;
}

/// Answers a unary call.
pub async fn unary<Q, R, F>(request: Request<Incoming>, call: impl FnMut(Q) -> F) -> Response<Body>
where
    Q: Message + Default + 'static,
    R: Message + Default + 'static,
    F: Future<Output = Result<R, Status>>,
{
    Grpc::new(ProstCodec::<R, Q>::default())
        .unary(Call(call), request)
        .await
}

/// Answers a call with a stream of messages; its request message is ignored.
pub async fn streaming<Q, R, S>(request: Request<Incoming>, messages: S) -> Response<Body>
where
    Q: Message + Default + 'static,
    R: Message + Default + 'static,
    S: Stream<Item = Result<R, Status>> + Send + 'static,
{
    Grpc::new(ProstCodec::<R, Q>::default())
        .server_streaming(Flow(Some(messages)), request)
        .await
}

/// The messages of one call.
struct Flow<S>(Option<S>);

impl<Q, R, S> ServerStreamingService<Q> for Flow<S>
where
    S: Stream<Item = Result<R, Status>>,
{
    type Response = R;
    type ResponseStream = S;
    type Future = Ready<Result<tonic::Response<S>, Status>>;

    fn call(&mut self, _: tonic::Request<Q>) -> Self::Future {
        let messages = self.0.take().map(tonic::Response::new);
        ready(messages.ok_or_else(|| Status::internal("a call is answered once")))
    }
}

/// Answers a call to an unknown method.
pub fn unknown(path: &str) -> Response<Body> {
    Status::unimplemented(format!("{path} is not served")).into_http()
}

struct Call<C>(C);

impl<Q, R, C, F> UnaryService<Q> for Call<C>
where
    C: FnMut(Q) -> F,
    F: Future<Output = Result<R, Status>>,
{
    type Response = R;
    type Future = Map<F, fn(F::Output) -> Result<tonic::Response<R>, Status>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        self.0(request.into_inner()).map(|answer| answer.map(tonic::Response::new))
    }
}

/// Listens on a socket at this path; replaces one that a dead process left.
///
/// # Errors
/// The directory does not exist, or the path is too long for a socket.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    remove(path)?;
    UnixListener::bind(path)
}

/// Removes a file; a missing one is a success.
///
/// # Errors
/// The file exists and cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Waits until the value is true or its sender is dropped.
pub async fn ended(end: &mut watch::Receiver<bool>) {
    let _ = end.wait_for(|end| *end).await;
}

/// Serves the socket until the end, then waits for running calls.
pub async fn serve<S: Service>(
    listener: UnixListener,
    service: Arc<S>,
    end: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let mut watch_end = end.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, Arc::clone(&service), end.clone()));
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            () = ended(&mut watch_end) => break,
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    let answered = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN, answered).await.is_err() {
        tracing::debug!("dropped running calls; the kubelet retries them");
    }
}

async fn converse<S: Service>(stream: UnixStream, service: Arc<S>, mut end: watch::Receiver<bool>) {
    let answer = service_fn(move |request| {
        let answer = Arc::clone(&service).answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection =
        http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer);
    let mut connection = pin!(connection);
    let done = tokio::select! {
        done = connection.as_mut() => done,
        () = ended(&mut end) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection of the kubelet failed");
    }
}
