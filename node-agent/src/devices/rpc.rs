//! gRPC on a Unix socket, as much of it as a kubelet speaks: unary calls and streams of answers over plain
//! HTTP/2.

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

/// How long calls may take that run when the socket is closed.
const GOODBYE: Duration = Duration::from_secs(2);

/// Before another connection is taken after one could not be.
const BREATH: Duration = Duration::from_millis(100);

/// What answers on a socket.
pub(crate) trait Service: Send + Sync + 'static {
    /// Answers one call, which is told by its path.
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Response<Body>>;
}

/// Answers a call by a function from its message.
pub(crate) async fn unary<Q, R, F>(
    request: Request<Incoming>,
    call: impl FnMut(Q) -> F,
) -> Response<Body>
where
    Q: Message + Default + 'static,
    R: Message + Default + 'static,
    F: Future<Output = Result<R, Status>>,
{
    Grpc::new(ProstCodec::<R, Q>::default())
        .unary(Call(call), request)
        .await
}

/// Answers a call by a stream of messages, whatever it asks for.
pub(crate) async fn streaming<Q, R, S>(request: Request<Incoming>, messages: S) -> Response<Body>
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

/// Answers a call that is not known.
pub(crate) fn unknown(path: &str) -> Response<Body> {
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

/// A socket at this path, in the place of one that a dead process left.
///
/// # Errors
/// If there is no such folder, or the path is too long for a socket.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    remove(path)?;
    UnixListener::bind(path)
}

/// # Errors
/// If it is there and stays.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Waits for the end.
pub(crate) async fn told(end: &mut watch::Receiver<bool>) {
    // Who tells it is gone: that is the end as well.
    let _ = end.wait_for(|end| *end).await;
}

/// Answers on a socket until the end, and until the calls that run then are answered.
pub(crate) async fn serve<S: Service>(
    listener: UnixListener,
    service: Arc<S>,
    end: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let mut ended = end.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, Arc::clone(&service), end.clone()));
                }
                Err(error) => {
                    tracing::debug!(%error, "no connection of the kubelet's could be taken");
                    tokio::time::sleep(BREATH).await;
                }
            },
            () = told(&mut ended) => break,
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    let answered = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GOODBYE, answered).await.is_err() {
        tracing::debug!("calls of the kubelet's are left unanswered: it asks again");
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
        () = told(&mut end) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection of the kubelet's broke");
    }
}
