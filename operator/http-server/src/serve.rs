//! HTTP over TLS: bounded connections, a deadline on each step, an orderly end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

/// Time for a TLS handshake.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// A connection without a request for so long is closed. API servers close theirs after 90 s, and
/// a connection that the webhook closes under a request may cost that pod its injection.
const IDLE_DEADLINE: Duration = Duration::from_secs(120);
/// Time that running calls have when the process ends.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);
/// Wait after a failed accept (no descriptors left) before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves at most `limit` connections at a time until `shutdown`, then lets running calls finish.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    routes: Router,
    limit: usize,
    shutdown: impl Future<Output = ()>,
) {
    let acceptor = TlsAcceptor::from(tls);
    let places = Arc::new(Semaphore::new(limit));
    let (end, ending) = watch::channel(false);
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            warn!(limit, "too many connections: the newest is closed");
            continue;
        };
        let (acceptor, routes, ending) = (acceptor.clone(), routes.clone(), ending.clone());
        connections.spawn(async move {
            serve_connection(stream, acceptor, routes, ending).await;
            drop(place);
        });
    }
    drop(listener);
    end.send_replace(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_DEADLINE, drained).await.is_err() {
        warn!("calls were still running at the end and are cut off");
    }
}

async fn serve_connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    routes: Router,
    mut ending: watch::Receiver<bool>,
) {
    let handshake = tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream));
    let stream = match handshake.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "TLS handshake failed"),
        Err(_) => return debug!("TLS handshake took too long"),
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_DEADLINE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    tokio::pin!(connection);
    let end = async move {
        // A sender that is gone means the end too.
        let _ = ending.wait_for(|ending| *ending).await;
    };
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = end => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}
